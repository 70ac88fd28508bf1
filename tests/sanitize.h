/* SPDX-License-Identifier: MIT
 *
 * Defines SANITIZE_ADDRESS and SANITIZE_THREAD as the compiler flags ask for. gcc and clang report them differently.
 */
#ifndef BNET_SANITIZE_H
#define BNET_SANITIZE_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZE_ADDRESS 1
#endif
#if __has_feature(thread_sanitizer)
#define SANITIZE_THREAD 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZE_ADDRESS 1
#endif
#if defined(__SANITIZE_THREAD__)
#define SANITIZE_THREAD 1
#endif

#endif
