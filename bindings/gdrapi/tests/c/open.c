/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Prints whether the library opens here.
 */
#include "gdrapi.h"
#include <stdio.h>

int main(void)
{
    gdr_t g = gdr_open();
    puts(g ? "open" : "null");
    return g ? gdr_close(g) : 0;
}
