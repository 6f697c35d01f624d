// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// Returns the size of the character at the beginning of `text`, or 0 if there is no valid one.
size_t CharacterBytes(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // An overlong encoding, half of a UTF-16 surrogate pair, or beyond the last code point.
  const unsigned char second = byte(1);
  const bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                   (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return bad ? 0 : size;
}

// Returns whether the character is a control character: C0, DEL or C1 (U+0080 to U+009F).
bool IsControl(absl::string_view character) {
  const unsigned char first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

void AppendEscaped(absl::string_view bytes, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : bytes) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '\t' || c == '\n' || c == '\r') {
      *out += '\\';
      *out += c == '\t' ? 't' : c == '\n' ? 'n' : 'r';
    } else {
      *out += "\\x";
      *out += kDigits[byte >> 4];
      *out += kDigits[byte & 15];
    }
  }
}

}  // namespace

std::string ValidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    if (size == 0) {
      valid += "\xEF\xBF\xBD";
    } else {
      valid.append(text.data(), size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return valid;
}

std::string Printable(absl::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    const absl::string_view character = text.substr(0, size == 0 ? 1 : size);
    if (size == 0 || IsControl(character)) {
      AppendEscaped(character, &printable);
    } else {
      printable.append(character.data(), character.size());
    }
    text.remove_prefix(character.size());
  }
  return printable;
}

std::string Quoted(absl::string_view text, size_t max_bytes) {
  absl::string_view shown;
  while (shown.size() < text.size()) {
    const size_t next = std::max<size_t>(CharacterBytes(text.substr(shown.size())), 1);
    if (shown.size() + next > max_bytes) break;
    shown = text.substr(0, shown.size() + next);
  }
  return absl::StrCat("\"", Printable(shown), "\"", shown.size() < text.size() ? "..." : "");
}

}  // namespace tandem
