// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/sizes.h"

#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tandem::bench {
namespace {

constexpr uint64_t kMaxMessageBytes = uint64_t{16} << 30;  // largest size of one message
constexpr size_t kMaxSizes = 1000;

absl::StatusOr<size_t> ParseSize(absl::string_view text) {
  const absl::string_view whole = text;
  int shift = 0;
  if (!text.empty()) {
    const char unit = absl::ascii_toupper(text.back());
    shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
    if (shift != 0) text.remove_suffix(1);
  }
  uint64_t number = 0;
  if (text.empty() || !absl::ascii_isdigit(text[0]) || !absl::SimpleAtoi(text, &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", whole, "' is no size; it must be a number of bytes like 8, 64K or 1M"));
  }
  if (number > (kMaxMessageBytes >> shift)) {
    return absl::InvalidArgumentError(absl::StrCat("size ", whole, " is above 16G"));
  }
  return static_cast<size_t>(number << shift);
}

absl::Status AddRange(absl::string_view text, std::vector<size_t>* sizes) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() > 3) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no range; it must be from:to:factor"));
  }
  TANDEM_ASSIGN_OR_RETURN(const size_t from, ParseSize(parts[0]));
  TANDEM_ASSIGN_OR_RETURN(const size_t to, ParseSize(parts[1]));
  size_t factor = 2;
  if (parts.size() == 3) {
    TANDEM_ASSIGN_OR_RETURN(factor, ParseSize(parts[2]));
  }
  if (from == 0 || from > to || factor < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("range '", text,
                     "' goes nowhere; it must start above 0, not end before, and its factor be 2 or more"));
  }
  for (size_t size = from; size <= to; size *= factor) {
    sizes->push_back(size);
    if (size > to / factor) break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<size_t>> ParseSizes(absl::string_view text) {
  std::vector<size_t> sizes;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (part.find(':') != part.npos) {
      TANDEM_RETURN_IF_ERROR(AddRange(part, &sizes));
    } else {
      TANDEM_ASSIGN_OR_RETURN(const size_t size, ParseSize(part));
      sizes.push_back(size);
    }
    if (sizes.size() > kMaxSizes) return absl::InvalidArgumentError("more than 1000 sizes");
  }
  return sizes;
}

}  // namespace tandem::bench
