// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "worker/job/fields.h"
#include "worker/job/path_expansion.h"

namespace tandem::worker {
namespace {

class FieldWriter : public Fields {
 public:
  bool reading() const override { return false; }

  bool Real(const char* name, double* value, Range, const char*) override {
    return Put(name, FormatValue(*value));
  }
  bool Real(const char* name, float* value, Range, const char*) override {
    return Put(name, FormatValue(*value));
  }
  bool Whole(const char* name, int64_t* value, Range, const char*) override {
    return Put(name, absl::StrCat(*value));
  }
  bool Bool(const char* name, bool* value, const char*) override {
    return Put(name, *value ? "true" : "false");
  }
  bool Text(const char* name, std::string* value, const char*) override { return Put(name, *value); }
  bool Path(const char* name, std::string* value, const char*) override {
    return Put(name, EscapePath(*value));
  }
  bool Character(const char* name, char* value, const char*) override {
    if (*value == '\0') return false;  // none
    return Put(name, *value == '\t' ? "tab" : std::string(1, *value));
  }
  bool OneOf(const char* name, int* index, absl::Span<const std::string> names, const char*) override {
    return Put(name, names[*index]);
  }
  bool Paths(const char* name, std::vector<std::string>* value, const char*) override {
    std::vector<std::string> escaped;
    for (const std::string& path : *value) escaped.push_back(EscapePath(path));
    return Texts(name, &escaped, "");
  }
  bool Texts(const char* name, std::vector<std::string>* value, const char*) override {
    YAML::Node list = FlowList();
    for (const std::string& item : *value) list.push_back(item);
    map_[name] = list;
    return false;
  }
  bool Wholes(const char* name, std::vector<int>* value, Range, const char*) override {
    YAML::Node list = FlowList();
    for (int item : *value) list.push_back(item);
    map_[name] = list;
    return false;
  }
  bool Group(const char* name, const char* shorthand, const char*,
             const std::function<void(Fields&)>& body) override {
    map_[name] = Written(shorthand, body);
    return false;
  }
  bool Groups(const char* name, const char* shorthand, const char*, size_t size,
              const std::function<void(Fields&, size_t)>& body) override {
    YAML::Node list(YAML::NodeType::Sequence);
    for (size_t i = 0; i < size; ++i) {
      list.push_back(Written(shorthand, [&](Fields& fields) { body(fields, i); }));
    }
    if (size == 0) list.SetStyle(YAML::EmitterStyle::Flow);
    map_[name] = list;
    return false;
  }
  void Wrong(const char*, absl::string_view) override {}
  void Note(const std::string&) override {}

  YAML::Node map() const { return map_; }

 private:
  bool Put(const char* name, const std::string& text) {
    map_[name] = text;
    return false;
  }
  static YAML::Node FlowList() {
    YAML::Node list(YAML::NodeType::Sequence);
    list.SetStyle(YAML::EmitterStyle::Flow);
    return list;
  }
  static YAML::Node Written(const char* shorthand, const std::function<void(Fields&)>& body) {
    FieldWriter writer;
    body(writer);
    if (shorthand != nullptr && writer.map_.size() == 1 && writer.map_[shorthand]) {
      return writer.map_[shorthand];
    }
    return writer.map_;
  }

  YAML::Node map_{YAML::NodeType::Map};
};

}  // namespace

YAML::Node WriteFields(const std::function<void(Fields&)>& body) {
  FieldWriter writer;
  body(writer);
  return writer.map();
}

}  // namespace tandem::worker
