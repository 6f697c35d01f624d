// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/job/fields.h"
#include "worker/job/path_expansion.h"

namespace tandem::worker {
namespace {

std::string Describe(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  return absl::StrCat("'", node.Scalar(), "'");
}

// Returns what is wanted, with its range if it has one.
std::string WithRange(absl::string_view wanted, const Range& range) {
  const std::string limits = range.ToString();
  return limits.empty() ? std::string(wanted) : absl::StrCat(wanted, " ", limits);
}

class FieldReader : public Fields {
 public:
  FieldReader(const YAML::Node& map, std::string path, int parent_line, JobErrors* errors)
      : map_(map), path_(std::move(path)), errors_(errors), line_(Line(map, parent_line)) {}

  bool reading() const override { return true; }

  bool Real(const char* name, double* value, Range range, const char*) override {
    return ReadReal(name, value, range);
  }
  bool Real(const char* name, float* value, Range range, const char*) override {
    return ReadReal(name, value, range);
  }

  bool Whole(const char* name, int64_t* value, Range range, const char*) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    int64_t parsed;
    if (!ParseWhole(*node, &parsed)) {
      Refuse(name, *node, "a whole number");
    } else if (!range.Holds(static_cast<double>(parsed))) {
      Refuse(name, *node, WithRange("a whole number", range));
    } else {
      *value = parsed;
    }
    return true;
  }

  bool Bool(const char* name, bool* value, const char*) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    if (!node->IsScalar() || !YAML::convert<bool>::decode(*node, *value)) {
      Refuse(name, *node, "true or false");
    }
    return true;
  }

  bool Text(const char* name, std::string* value, const char*) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    if (!node->IsScalar()) {
      Refuse(name, *node, "text");
    } else {
      *value = node->Scalar();
    }
    return true;
  }

  bool Path(const char* name, std::string* value, const char*) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    if (!node->IsScalar()) {
      Refuse(name, *node, "a path");
    } else {
      Expand(name, PathOf(name), node->Scalar(), value);
    }
    return true;
  }

  bool Paths(const char* name, std::vector<std::string>* value, const char*) override {
    std::vector<std::string> texts;
    if (!TextsOrOne(name, /*one_allowed=*/true, "a path or a list of paths", &texts)) return false;
    value->clear();
    for (size_t i = 0; i < texts.size(); ++i) {
      std::string path;
      if (Expand(name, absl::StrCat(PathOf(name), ".", i), texts[i], &path))
        value->push_back(std::move(path));
    }
    return true;
  }

  bool Texts(const char* name, std::vector<std::string>* value, const char*) override {
    return TextsOrOne(name, /*one_allowed=*/false, "a list", value);
  }

  bool Character(const char* name, char* value, const char*) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    if (node->IsScalar() && node->Scalar().size() == 1) {
      *value = node->Scalar()[0];
    } else if (node->IsScalar() && node->Scalar() == "tab") {
      *value = '\t';
    } else {
      Refuse(name, *node, "a single character, or 'tab'");
    }
    return true;
  }

  bool Wholes(const char* name, std::vector<int>* value, Range range, const char*) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    range.max = std::min(range.max, static_cast<double>(std::numeric_limits<int>::max()));
    const std::string wanted = WithRange("a list of whole numbers", range);
    if (!node->IsSequence()) {
      Refuse(name, *node, wanted);
      return true;
    }
    std::vector<int> read;
    for (const YAML::Node& item : *node) {
      int64_t whole;
      if (!ParseWhole(item, &whole) || !range.Holds(static_cast<double>(whole))) {
        Refuse(name, item, wanted);
        return true;
      }
      read.push_back(static_cast<int>(whole));
    }
    *value = std::move(read);
    return true;
  }

  bool OneOf(const char* name, int* index, absl::Span<const std::string> names, const char*) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    const std::string text = node->IsScalar() ? node->Scalar() : "";
    for (size_t i = 0; i < names.size(); ++i) {
      if (text == names[i]) {
        *index = static_cast<int>(i);
        return true;
      }
    }
    Error(name, *node,
          absl::StrCat("is ", Describe(*node), "; it must be one of ", absl::StrJoin(names, ", "),
                       Suggestion(text, {names.begin(), names.end()})));
    // The fields of the mapping may depend on the choice, so unknown ones cannot be told from misspelt ones.
    unknown_fields_are_errors_ = false;
    return true;
  }

  bool Group(const char* name, const char* shorthand, const char*,
             const std::function<void(Fields&)>& body) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    ReadGroup(name, PathOf(name), *node, shorthand, body);
    return true;
  }

  bool Groups(const char* name, const char* shorthand, const char*, size_t,
              const std::function<void(Fields&, size_t)>& body) override {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    if (!node->IsSequence()) {
      Refuse(name, *node, "a list");
      return true;
    }
    size_t i = 0;
    for (const YAML::Node& item : *node) {
      ReadGroup(name, absl::StrCat(PathOf(name), ".", i), item, shorthand,
                [&](Fields& fields) { body(fields, i); });
      ++i;
    }
    return true;
  }

  void Wrong(const char* name, absl::string_view message) override {
    for (const auto& entry : map_) {
      if (entry.first.IsScalar() && entry.first.Scalar() == name) return Error(name, entry.second, message);
    }
    Error(name, map_, message);
  }

  void Note(const std::string& note) override { note_ = note; }

  // Reports fields that were not declared.
  void Finish() {
    absl::flat_hash_set<std::string> seen;
    for (const auto& entry : map_) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
      const int line = Line(entry.first, line_);
      if (!seen.insert(key).second) {
        errors_->Add(PathOf(key), line, absl::StrCat("field '", key, "'", Where(), " is given twice"));
      }
      if (std::find(known_.begin(), known_.end(), key) != known_.end() || !unknown_fields_are_errors_)
        continue;
      std::string hint = Suggestion(key, known_);
      if (hint.empty()) hint = absl::StrCat("; its fields are ", absl::StrJoin(known_, ", "));
      errors_->Add(PathOf(key), line, absl::StrCat("unknown field '", key, "'", Where(), hint));
    }
  }

  // The number is checked once more after it was rounded: 0.99999999999 is less than 1, but as a float it
  // is 1.
  template <typename T>
  bool ReadReal(const char* name, T* value, const Range& range) {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    double parsed;
    if (!node->IsScalar() || !absl::SimpleAtod(node->Scalar(), &parsed) || !std::isfinite(parsed)) {
      Refuse(name, *node, "a number");
    } else if (!range.Holds(parsed) || !range.Holds(static_cast<T>(parsed))) {
      // Without a range of its own, the number is too large for its type.
      Refuse(name, *node,
             range.ToString().empty() ? absl::StrCat("a number of at most ",
                                                     FormatValue(std::numeric_limits<T>::max()), " in size")
                                      : WithRange("a number", range));
    } else {
      *value = static_cast<T>(parsed);
    }
    return true;
  }

 private:
  static int Line(const YAML::Node& node, int otherwise) {
    const YAML::Mark mark = node.Mark();
    return mark.is_null() ? otherwise : mark.line + 1;
  }

  std::string PathOf(absl::string_view name) const {
    return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", name);
  }
  std::string Where() const {
    std::string where = path_.empty() ? "" : absl::StrCat(" in '", path_, "'");
    if (!note_.empty()) absl::StrAppend(&where, " ", note_);
    return where;
  }

  // Returns the value of the field, or nothing if it is absent or empty. An empty one is reported.
  std::optional<YAML::Node> Take(const char* name) {
    known_.push_back(name);
    for (const auto& entry : map_) {
      if (!entry.first.IsScalar() || entry.first.Scalar() != name) continue;
      if (entry.second.IsNull()) {
        errors_->Add(PathOf(name), Line(entry.first, line_),
                     absl::StrCat("field '", name, "'", Where(), " has no value"));
        return std::nullopt;
      }
      return entry.second;
    }
    return std::nullopt;
  }

  void Error(const char* name, const YAML::Node& at, absl::string_view message) {
    errors_->Add(PathOf(name), Line(at, line_), absl::StrCat("field '", name, "'", Where(), " ", message));
  }
  void Refuse(const char* name, const YAML::Node& node, absl::string_view wanted) {
    Error(name, node, absl::StrCat("must be ", wanted, ", not ", Describe(node)));
  }

  static bool ParseWhole(const YAML::Node& node, int64_t* value) {
    if (!node.IsScalar()) return false;
    if (absl::SimpleAtoi(node.Scalar(), value)) return true;
    // "1e6" is a whole number, too.
    double real;
    if (!absl::SimpleAtod(node.Scalar(), &real) || std::abs(real) > 0x1.0p53 || real != std::trunc(real)) {
      return false;
    }
    *value = static_cast<int64_t>(real);
    return true;
  }

  bool TextsOrOne(const char* name, bool one_allowed, absl::string_view wanted,
                  std::vector<std::string>* value) {
    const std::optional<YAML::Node> node = Take(name);
    if (!node) return false;
    if (one_allowed && node->IsScalar()) {
      *value = {node->Scalar()};
      return true;
    }
    if (!node->IsSequence()) {
      Refuse(name, *node, wanted);
      return true;
    }
    std::vector<std::string> read;
    for (const YAML::Node& item : *node) {
      if (!item.IsScalar()) {
        Refuse(name, item, wanted);
        return true;
      }
      read.push_back(item.Scalar());
    }
    *value = std::move(read);
    return true;
  }

  // `field` is the dotted path of the field or list element, whose origin decides what `text` is relative to.
  bool Expand(const char* name, const std::string& field, const std::string& text, std::string* value) {
    absl::StatusOr<std::string> path = ResolvePath(text, errors_->OriginOf(field).directory);
    if (!path.ok()) {
      Wrong(name, path.status().message());
      return false;
    }
    *value = *std::move(path);
    return true;
  }

  void ReadGroup(const char* name, const std::string& path, const YAML::Node& node, const char* shorthand,
                 const std::function<void(Fields&)>& body) {
    YAML::Node map = node;
    if (shorthand != nullptr && node.IsScalar()) {
      map.reset(YAML::Node(YAML::NodeType::Map));
      map[shorthand] = node;
    }
    if (!map.IsMap()) {
      Refuse(name, node, shorthand == nullptr ? "a mapping" : "a name or a mapping");
      return;
    }
    FieldReader reader(map, path, Line(node, line_), errors_);
    body(reader);
    reader.Finish();
  }

  const YAML::Node map_;
  const std::string path_;
  JobErrors* const errors_;
  const int line_;
  std::string note_;
  std::vector<std::string> known_;
  bool unknown_fields_are_errors_ = true;
};

}  // namespace

void ReadFields(const YAML::Node& node, const std::string& path, JobErrors* errors,
                const std::function<void(Fields&)>& body) {
  FieldReader reader(node, path, 1, errors);
  body(reader);
  reader.Finish();
}

}  // namespace tandem::worker
