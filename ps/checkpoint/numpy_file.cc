// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/numpy_file.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/checksummed_file.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) *out += static_cast<char>(value >> (8 * i) & 0xff);
}

// The part that the local header and the central directory's header of a zip entry have in common.
void AppendZipFields(const std::string& name, const std::string& bytes, std::string* out) {
  AppendLittleEndian(20, 2, out);      // version 2.0 is needed to unpack it
  AppendLittleEndian(0, 2, out);       // flags
  AppendLittleEndian(0, 2, out);       // stored, not compressed
  AppendLittleEndian(0, 2, out);       // time: midnight
  AppendLittleEndian(0x0021, 2, out);  // date: 1980-01-01, so that the same model gives the same bytes
  AppendLittleEndian(Crc32(bytes), 4, out);
  AppendLittleEndian(bytes.size(), 4, out);
  AppendLittleEndian(bytes.size(), 4, out);
  AppendLittleEndian(name.size(), 2, out);
  AppendLittleEndian(0, 2, out);  // no extra field
}

}  // namespace

std::string NpyHeader(absl::string_view dtype, absl::Span<const uint64_t> shape) {
  constexpr size_t kPreamble = 10, kAlignment = 64;
  // A tuple of one number is written (5,) in Python.
  std::string text = absl::StrCat("{'descr': '", dtype, "', 'fortran_order': False, 'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? "," : "", "), }");
  const size_t rest = (kPreamble + text.size() + 1) % kAlignment;
  text.append(rest == 0 ? 0 : kAlignment - rest, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  AppendLittleEndian(text.size(), 2, &header);
  return header + text;
}

std::string NpzFile(const std::vector<NpzEntry>& entries) {
  std::string file, directory;
  for (const NpzEntry& entry : entries) {
    const std::string name = entry.name + ".npy";
    const size_t offset = file.size();
    file += "PK\x03\x04";
    AppendZipFields(name, entry.bytes, &file);
    file += name;
    file += entry.bytes;
    directory += "PK\x01\x02";
    AppendLittleEndian(20, 2, &directory);  // made by version 2.0
    AppendZipFields(name, entry.bytes, &directory);
    AppendLittleEndian(0, 2, &directory);  // no comment
    AppendLittleEndian(0, 2, &directory);  // disk 0
    AppendLittleEndian(0, 2, &directory);  // internal attributes
    AppendLittleEndian(0, 4, &directory);  // external attributes
    AppendLittleEndian(offset, 4, &directory);
    directory += name;
  }
  const size_t directory_offset = file.size();
  TANDEM_CHECK(directory_offset + directory.size() <= std::numeric_limits<uint32_t>::max());
  file += directory;
  file += "PK\x05\x06";
  AppendLittleEndian(0, 2, &file);  // this disk
  AppendLittleEndian(0, 2, &file);  // the directory's disk
  AppendLittleEndian(entries.size(), 2, &file);
  AppendLittleEndian(entries.size(), 2, &file);
  AppendLittleEndian(directory.size(), 4, &file);
  AppendLittleEndian(directory_offset, 4, &file);
  AppendLittleEndian(0, 2, &file);  // no comment
  return file;
}

}  // namespace tandem::ps
