/* SPDX-License-Identifier: MIT
 *
 * Inputs of collectives that are small whole numbers, exact in every type, and the results to expect.
 */
#ifndef BNET_ELEMENTS_H
#define BNET_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "bagua_net_host.h"
#include "check.h"

static inline void store(void *buf, size_t i, int dtype, int value)
{
	const float single = (float)value;
	uint32_t bits;
	int exponent = 0;

	switch (dtype) {
	case BNET_INT8:
	case BNET_UINT8:
		((uint8_t *)buf)[i] = (uint8_t)value;
		return;
	case BNET_INT32:
		((int32_t *)buf)[i] = value;
		return;
	case BNET_INT64:
		((int64_t *)buf)[i] = value;
		return;
	case BNET_FLOAT16:
		while (value >> (exponent + 1) != 0)
			exponent++;
		((uint16_t *)buf)[i] =
			(uint16_t)(value == 0 ? 0 : (exponent + 15) << 10 | ((value << 10 >> exponent) & 0x3ff));
		return;
	case BNET_BFLOAT16:
		memcpy(&bits, &single, sizeof(bits));
		((uint16_t *)buf)[i] = (uint16_t)(bits >> 16);
		return;
	case BNET_FLOAT32:
		((float *)buf)[i] = single;
		return;
	default:
		((double *)buf)[i] = value;
	}
}

/* A rank's element i: 0 … 10; 1 or 2 for products. */
static inline int input(int rank, size_t i, int op)
{
	const int value = (int)((i * 7 + i / 251 + (size_t)rank * 3) % 11);

	return op == BNET_PROD ? 1 + value % 2 : value;
}

static inline int reduced(int nranks, size_t i, int op)
{
	int result = input(0, i, op);

	for (int rank = 1; rank < nranks; rank++) {
		const int value = input(rank, i, op);

		if (op == BNET_PROD)
			result *= value;
		else if (op == BNET_MIN || op == BNET_MAX)
			result = (op == BNET_MIN) == (value < result) ? value : result;
		else
			result += value;
	}
	return result;
}

static inline char *new_buffer(size_t count, int dtype)
{
	char *buf = malloc(count * bnet_coll_dtype_size(dtype) + 1);

	check(buf != NULL);
	memset(buf, 0x77, count * bnet_coll_dtype_size(dtype) + 1);
	return buf;
}

static inline void fill(void *buf, int rank, size_t first, size_t count, int dtype, int op)
{
	for (size_t i = 0; i < count; i++)
		store(buf, i, dtype, input(rank, first + i, op));
}

/* buf holds the reduction of elements first … first+count-1. */
static inline void check_reduced(const char *buf, int nranks, size_t first, size_t count, int dtype, int op)
{
	char *expected = new_buffer(count, dtype);

	for (size_t i = 0; i < count; i++)
		store(expected, i, dtype, reduced(nranks, first + i, op));
	if (op == BNET_AVG)
		check_int(bnet_coll_scale_local(expected, count, dtype, nranks), 0);
	check(memcmp(buf, expected, count * bnet_coll_dtype_size(dtype)) == 0);
	free(expected);
}

static inline void check_input(const char *buf, int rank, size_t first, size_t count, int dtype)
{
	char *expected = new_buffer(count, dtype);

	fill(expected, rank, first, count, dtype, BNET_SUM);
	check(memcmp(buf, expected, count * bnet_coll_dtype_size(dtype)) == 0);
	free(expected);
}

#endif
