/* SPDX-License-Identifier: MIT
 *
 * For files of loops over elements: BNET_CLONES before a function makes one copy of it for each instruction set, of
 * which the loader chooses; BNET_INDEPENDENT before a loop says that no iteration depends on another. Include it last:
 * it sets options of the compiler for the rest of the file. The names must differ between files, also those of static
 * functions: clang makes their resolvers global.
 */
#ifndef BNET_CLONES_H
#define BNET_CLONES_H

/* The choice runs before a sanitizer's runtime is initialized, so sanitized builds keep the baseline. */
#if defined(__has_feature)
#define BNET_HAS_FEATURE(x) __has_feature(x)
#else
#define BNET_HAS_FEATURE(x) 0
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
	!BNET_HAS_FEATURE(address_sanitizer) && !BNET_HAS_FEATURE(thread_sanitizer) &&                              \
	!BNET_HAS_FEATURE(memory_sanitizer)
#define BNET_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define BNET_CLONES
#endif

/* An output may equal an operand. A run-time check for overlap would then choose the scalar path, although no iteration
 * depends on another. gcc vectorizes such loops only at -O3, and selections between computed floats only if it may
 * assume that the exception flags are not read. No product and sum are fused: results must have the same bits on every
 * machine. */
#if defined(__clang__)
#define BNET_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#pragma clang diagnostic ignored "-Wpass-failed" /* unoptimized and sanitized builds may not vectorize */
#pragma STDC FP_CONTRACT OFF
#else
#define BNET_INDEPENDENT _Pragma("GCC ivdep")
#pragma GCC optimize("O3", "no-trapping-math", "fp-contract=off")
#endif

#endif
