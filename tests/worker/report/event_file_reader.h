// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_WORKER_REPORT_EVENT_FILE_READER_H_
#define TANDEM_TESTS_WORKER_REPORT_EVENT_FILE_READER_H_

// Reads TensorBoard's event files without any code of the writer: the CRC bit by bit, the messages by hand.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::testing {

struct EventFile {
  std::string version;
  std::map<std::string, std::vector<std::pair<int64_t, float>>> scalars;  // step, value; by tag
  std::vector<double> wall_times;
  std::string wrong;  // error; empty: none
};

inline uint32_t PlainMaskedCrc32c(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const unsigned char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((crc ^ (c >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (one ? 0x82f63b78 : 0);
    }
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

// The fields of a message in order: number, and the bytes of its value (8 for a double or a varint, 4 for a
// float).
inline bool ParseFields(const std::string& message, std::vector<std::pair<int, std::string>>* fields) {
  size_t at = 0;
  const auto varint = [&](uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && at < message.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[at++]);
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  while (at < message.size()) {
    uint64_t key, length;
    if (!varint(&key)) return false;
    if ((key & 7) == 0) {
      uint64_t value;
      if (!varint(&value)) return false;
      fields->emplace_back(key >> 3, std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
      continue;
    }
    if ((key & 7) == 2) {
      if (!varint(&length)) return false;
    } else {
      length = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : SIZE_MAX;
    }
    if (length > message.size() - at) return false;
    fields->emplace_back(key >> 3, message.substr(at, length));
    at += length;
  }
  return true;
}

template <typename T>
T As(const std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), std::min(sizeof(value), bytes.size()));
  return value;
}

inline EventFile ReadEventFile(const std::string& path) {
  EventFile file;
  const std::string all = ReadFile(path);
  for (size_t at = 0; at < all.size();) {
    if (all.size() - at < 16) return file.wrong = "cut short", file;
    const std::string length_bytes = all.substr(at, 8);
    const auto length = As<uint64_t>(length_bytes);
    if (As<uint32_t>(all.substr(at + 8, 4)) != PlainMaskedCrc32c(length_bytes))
      return file.wrong = "length", file;
    if (length > all.size() - at - 16) return file.wrong = "cut short", file;
    const std::string event = all.substr(at + 12, length);
    if (As<uint32_t>(all.substr(at + 12 + length, 4)) != PlainMaskedCrc32c(event))
      return file.wrong = "crc", file;
    at += 16 + length;
    std::vector<std::pair<int, std::string>> fields, summary;
    if (!ParseFields(event, &fields)) return file.wrong = "event", file;
    int64_t step = 0;
    for (const auto& [number, bytes] : fields) {
      if (number == 1) file.wall_times.push_back(As<double>(bytes));
      if (number == 2) step = As<int64_t>(bytes);
      if (number == 3) file.version = bytes;
      if (number == 5 && !ParseFields(bytes, &summary)) return file.wrong = "summary", file;
    }
    for (const auto& [number, bytes] : summary) {
      std::vector<std::pair<int, std::string>> value;
      if (number != 1 || !ParseFields(bytes, &value)) return file.wrong = "value", file;
      std::string tag;
      float scalar = 0;
      for (const auto& [field, content] : value) {
        if (field == 1) tag = content;
        if (field == 2) scalar = As<float>(content);
      }
      file.scalars[tag].emplace_back(step, scalar);
    }
  }
  return file;
}

// Returns the only event file of a run's directory.
inline EventFile ReadRun(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) paths.push_back(entry.path());
  }
  if (paths.size() == 1) return ReadEventFile(paths[0]);
  EventFile file;
  file.wrong = absl::StrCat(paths.size(), " event files in ", directory);
  return file;
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_WORKER_REPORT_EVENT_FILE_READER_H_
