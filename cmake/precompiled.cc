// SPDX-License-Identifier: Apache-2.0
// A CMake target needs a source. This one does nothing.
int main() {}
