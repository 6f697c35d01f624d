// SPDX-License-Identifier: Apache-2.0
// Used only in AddressSanitizer builds, by the programs that mpirun starts. MPI_Finalize unloads Open MPI's
// components. With them go the variables that point to their tables, and the names by which tests/lsan.supp
// distinguishes their leaks from ours: LeakSanitizer would report all of it as leaks of an unknown module. So
// nothing is unloaded, and the leaks keep their names.
extern "C" int dlclose(void* library);
int dlclose(void* library) { return 0; }
