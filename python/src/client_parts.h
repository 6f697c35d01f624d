// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_CLIENT_PARTS_H_
#define TANDEM_PYTHON_SRC_CLIENT_PARTS_H_

// Reads the parts of pulls and pushes that python/tandem/client.py has checked. Arrays are given by their
// addresses; Python keeps them alive until the call has ended. All functions require the GIL.

#include <cstdint>
#include <string>
#include <vector>

#include "nanobind/nanobind.h"
#include "ps/client/parts.h"

namespace tandem::python {

// Parses [(table, ids, num ids, rows, pooling, offsets, num offsets, GPU of the rows or -1, stream or None),
// ...].
std::vector<ps::PullPart> ParsePullParts(nanobind::list list);

// A push's parts, with the versions to which they refer.
struct PushParts {
  std::vector<ps::PushPart> parts;
  std::vector<std::vector<uint64_t>> versions;
};

// Parses [(table, ids, num ids, gradients, pooling, offsets, num offsets, versions, learning rate factor, GPU
// of the gradients or -1, stream or None), ...].
PushParts ParsePushParts(nanobind::list list);

// Returns the GPU whose memory has `address`. Raises InvalidArgument with `what`, the name of the array, if
// none has; FailedPrecondition if there is no CUDA runtime.
int GpuOf(uint64_t address, const std::string& what);

// Returns the versions of each part as a tuple, one number a server.
nanobind::list ToPython(const ps::PullVersions& versions);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_CLIENT_PARTS_H_
