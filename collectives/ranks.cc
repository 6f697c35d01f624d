// SPDX-License-Identifier: Apache-2.0
#include "collectives/ranks.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::collectives {
namespace {

// Reads a text and writes another one.
class Renamer {
 public:
  Renamer(absl::string_view text, absl::Span<const int> names) : text_(text), names_(names) {}

  std::string Run() {
    while (at_ < text_.size()) {
      const bool word_begins = at_ == 0 || !absl::ascii_isalnum(text_[at_ - 1]);
      if (word_begins && Copy("rank ")) {
        if (Number()) DropCount();
      } else if (word_begins && Copy("ranks ")) {
        bool any = false;
        while (Number()) {
          any = true;
          if (!Copy(", ") && !Copy(" and ")) break;
        }
        if (any) DropCount();
      } else if (word_begins && Copy("group '")) {
        while (at_ < text_.size() && text_[at_] != '\'') result_ += text_[at_++];
      } else {
        result_ += text_[at_++];
      }
    }
    return std::move(result_);
  }

 private:
  bool Copy(absl::string_view word) {
    if (!absl::StartsWith(text_.substr(at_), word)) return false;
    absl::StrAppend(&result_, word);
    at_ += word.size();
    return true;
  }

  // Copies a number under its new name. Returns false if there is none.
  bool Number() {
    size_t end = at_;
    while (end < text_.size() && absl::ascii_isdigit(text_[end])) ++end;
    int value = 0;
    if (end == at_ || !absl::SimpleAtoi(text_.substr(at_, end - at_), &value)) return false;
    const bool known = value < static_cast<int>(names_.size());
    absl::StrAppend(&result_, known ? names_[value] : value);
    at_ = end;
    return true;
  }

  // Leaves out " of 3" behind a rank of a group of 3.
  void DropCount() {
    const std::string count = absl::StrCat(" of ", names_.size());
    const absl::string_view rest = text_.substr(at_);
    if (!absl::StartsWith(rest, count)) return;
    if (rest.size() > count.size() && absl::ascii_isalnum(rest[count.size()])) return;
    at_ += count.size();
  }

  const absl::string_view text_;
  const absl::Span<const int> names_;
  std::string result_;
  size_t at_ = 0;
};

}  // namespace

std::string NameRanks(absl::Span<const int> ranks) {
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  if (ranks.empty()) return "no rank";
  return absl::StrCat("ranks ", absl::StrJoin(ranks.subspan(0, ranks.size() - 1), ", "), " and ",
                      ranks.back());
}

std::string RenameRanks(absl::string_view text, absl::Span<const int> names) {
  return Renamer(text, names).Run();
}

}  // namespace tandem::collectives
