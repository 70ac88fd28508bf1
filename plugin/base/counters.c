/* SPDX-License-Identifier: MIT
 *
 * See counters.h.
 */
#include "base/counters.h"

struct bnet_counts bnet_counts;
