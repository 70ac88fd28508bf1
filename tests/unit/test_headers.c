/* SPDX-License-Identifier: MIT
 *
 * All headers of the library in one file: their names do not collide. The test is that this compiles; CMakeLists.txt
 * makes the list of the headers.
 */
#include "all_headers.h"

int main(void)
{
	return 0;
}
