// What the sources that declare flags include besides, compiled once. Not to be included by hand.
#ifndef TANDEM_CMAKE_PRECOMPILED_CLI_H_
#define TANDEM_CMAKE_PRECOMPILED_CLI_H_

#include "CLI/CLI.hpp"
#include "cmake/precompiled.h"

#endif  // TANDEM_CMAKE_PRECOMPILED_CLI_H_
