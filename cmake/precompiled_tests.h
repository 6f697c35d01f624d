// SPDX-License-Identifier: Apache-2.0
// The further headers that most tests include, compiled once. Must not be included by hand.
#ifndef TANDEM_CMAKE_PRECOMPILED_TESTS_H_
#define TANDEM_CMAKE_PRECOMPILED_TESTS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cmake/precompiled.h"
#include "tests/testing/status_matchers.h"

#endif  // TANDEM_CMAKE_PRECOMPILED_TESTS_H_
