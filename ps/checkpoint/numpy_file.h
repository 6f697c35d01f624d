// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_NUMPY_FILE_H_
#define TANDEM_PS_CHECKPOINT_NUMPY_FILE_H_

// The file formats of NumPy: .npy (one array; numpy/lib/format.py, version 1.0) and .npz (a zip archive of
// .npy files). Arrays are little-endian and in C order.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::ps {

// Returns the header of a .npy file, which the array's values follow. `dtype` is NumPy's name, such as "<f4"
// (float) or "<u8" (uint64_t).
std::string NpyHeader(absl::string_view dtype, absl::Span<const uint64_t> shape);

// An array of an .npz file.
struct NpzEntry {
  std::string name;   // without ".npy"
  std::string bytes;  // of the .npy file
};
// Returns an .npz file, not compressed. The same entries give the same bytes. Requires that all entries
// together have less than 4 GiB.
std::string NpzFile(const std::vector<NpzEntry>& entries);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_NUMPY_FILE_H_
