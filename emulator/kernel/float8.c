/* SPDX-License-Identifier: MIT
 *
 * 8-bit floats: e4m3 has four exponent bits, no infinity and one NaN; e5m2 is a shortened float16. Pure: any thread
 * may call this.
 */
#include "kernel/float8.h"

#include <math.h>
#include <string.h>

struct format {
	int fraction_bits;
	int bias;
	uint8_t largest; /* the largest finite magnitude; above it are infinity (e5m2) and NaNs */
	uint8_t nan;
};

static const struct format e4m3 = {3, 7, 0x7e, 0x7f};
static const struct format e5m2 = {2, 15, 0x7b, 0x7e};

static const struct format *format_of(enum emu_type type)
{
	return type == EMU_FLOAT8E4M3 ? &e4m3 : &e5m2;
}

static uint32_t float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static float bits_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static float widen(uint8_t value, const struct format *format)
{
	const uint32_t sign = (uint32_t)(value & 0x80) << 24;
	const uint32_t magnitude = value & 0x7f;
	const int shift = 23 - format->fraction_bits;
	const uint32_t rebias = (uint32_t)(127 - format->bias) << 23;

	if (magnitude > format->largest)
		return bits_float(sign | (magnitude == 0x7c && format == &e5m2 ? 0x7f800000 : 0x7fc00000));
	if (magnitude >> format->fraction_bits == 0) /* subnormal: below a leading one that is subtracted again */
		return bits_float(sign | float_bits(bits_float((magnitude << shift) + rebias + (1U << 23)) -
						    bits_float(rebias + (1U << 23))));
	return bits_float(sign | ((magnitude << shift) + rebias));
}

static uint8_t narrow(float value, const struct format *format)
{
	const uint32_t bits = float_bits(value);
	const uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
	const uint32_t magnitude = bits & 0x7fffffff;
	const int shift = 23 - format->fraction_bits;
	const uint32_t rebias = (uint32_t)(127 - format->bias) << 23;
	const uint32_t half = (1U << (shift - 1)) - 1;
	uint32_t rounded;

	if (magnitude > 0x7f800000)
		return sign | format->nan;
	if (magnitude < rebias + (1U << 23)) { /* subnormal: in a sum with this number the last place is the format's */
		const float aligned = bits_float((uint32_t)(127 + 24 - format->bias - format->fraction_bits) << 23);

		rounded = float_bits(bits_float(magnitude) + aligned) - float_bits(aligned);
	} else {
		rounded = (magnitude - rebias + half + (magnitude >> shift & 1)) >> shift;
	}
	return sign | (uint8_t)(rounded > format->largest ? format->largest : rounded);
}

float emu_float8_widen(uint8_t value, enum emu_type type)
{
	return widen(value, format_of(type));
}

uint8_t emu_float8_narrow(float value, enum emu_type type)
{
	return narrow(value, format_of(type));
}

void emu_float8_reduce(void *dst, const void *a, const void *b, size_t count, enum emu_type type, bool product)
{
	const struct format *format = format_of(type);
	const uint8_t *left = a, *right = b;
	float wide[256];
	uint8_t *out = dst;

	for (int i = 0; i < 256; i++)
		wide[i] = widen((uint8_t)i, format);
	for (size_t i = 0; i < count; i++) {
		const float x = wide[left[i]], y = wide[right[i]];

		out[i] = narrow(product ? x * y : x + y, format);
	}
}
