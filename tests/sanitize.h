/* SPDX-License-Identifier: MIT
 *
 * SANITIZE_ADDRESS and SANITIZE_THREAD: what this file is compiled with. gcc and clang say it differently.
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
