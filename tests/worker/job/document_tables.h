// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_WORKER_JOB_DOCUMENT_TABLES_H_
#define TANDEM_TESTS_WORKER_JOB_DOCUMENT_TABLES_H_

// Generates the tables of documents about job files from the declarations of the fields, and compares them
// with the documents.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "worker/job/fields.h"

namespace tandem::worker {

struct FieldRow {
  std::string group;  // dotted path
  std::string name;
  std::string help;
  std::string values;  // what is allowed
  std::string default_value;
};

// The fields that a schema declares.
struct JobFields {
  std::vector<FieldRow> rows;                         // in the order of declaration
  std::map<std::string, std::vector<KindDoc>> kinds;  // by the dotted path of the group
};

inline std::string Code(absl::string_view text) { return absl::StrCat("`", text, "`"); }

inline std::string RangeText(const Range& range) {
  const std::string text = range.ToString();
  return std::string(absl::StripPrefix(absl::StripPrefix(text, "of "), "in "));
}
inline std::string ListText(const Range& range) {
  return absl::StrCat("a list of whole numbers ", range.ToString());
}

inline std::string DefaultText(const FieldInfo& info, const FieldValue& value) {
  if (!ValidateField("", info, value).ok()) return "required";
  return Code(absl::StrReplaceAll(FormatValue(value), {{"e-0", "e-"}}));
}

// Collects the fields that are declared against a job with default values.
class FieldLister : public Fields {
 public:
  FieldLister(JobFields* out, std::string path) : out_(out), path_(std::move(path)) {}

  bool reading() const override { return true; }
  bool parsing() const override { return false; }

  bool Real(const char* name, double* value, Range range, const char* help) override {
    return Add(name, help, RangeText(range), FormatValue(*value));
  }
  bool Real(const char* name, float* value, Range range, const char* help) override {
    return Add(name, help, RangeText(range), FormatValue(*value));
  }
  bool Whole(const char* name, int64_t* value, Range range, const char* help) override {
    return Add(name, help, RangeText(range),
               range.Holds(static_cast<double>(*value)) ? absl::StrCat(*value) : "");
  }
  bool Bool(const char* name, bool* value, const char* help) override {
    return Add(name, help, "", *value ? "true" : "false");
  }
  bool Text(const char* name, std::string* value, const char* help) override {
    return Add(name, help, "", *value);
  }
  bool Path(const char* name, std::string* value, const char* help) override {
    return Add(name, help, "a path", *value);
  }
  bool Paths(const char* name, std::vector<std::string>* value, const char* help) override {
    return Add(name, help, "", absl::StrJoin(*value, ", "));
  }
  bool Character(const char* name, char* value, const char* help) override {
    return Add(name, help, "a character or `tab`", *value == '\0' ? "" : std::string(1, *value));
  }
  bool Texts(const char* name, std::vector<std::string>* value, const char* help) override {
    return Add(name, help, "a list", absl::StrJoin(*value, ", "));
  }
  bool Wholes(const char* name, std::vector<int>* value, Range range, const char* help) override {
    return Add(name, help, ListText(range), FormatValue(FieldValue(*value)));
  }
  bool OneOf(const char* name, int* index, absl::Span<const std::string> names, const char* help) override {
    const bool listed = out_->kinds.contains(path_);  // a table of its own says what the kinds are
    std::string values;
    for (const std::string& value : names) absl::StrAppend(&values, values.empty() ? "" : ", ", Code(value));
    return Add(name, help, listed ? "see below" : values, names[*index]);
  }
  bool Group(const char* name, const char* shorthand, const char* help,
             const std::function<void(Fields&)>& body) override {
    FieldLister group(out_, PathOf(name));
    body(group);
    return false;
  }
  bool Groups(const char* name, const char* shorthand, const char* help, size_t size,
              const std::function<void(Fields&, size_t)>& body) override {
    if (*help != '\0') Add(name, help, "a list", "");
    FieldLister group(out_, absl::StrCat(PathOf(name), ".N"));
    body(group, 0);
    return false;
  }
  void Wrong(const char*, absl::string_view) override {}
  void Note(const std::string&) override {}
  void Kind(const KindDoc& kind) override { out_->kinds[path_].push_back(kind); }

 private:
  std::string PathOf(absl::string_view name) const {
    return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", name);
  }

  bool Add(absl::string_view name, absl::string_view help, std::string values, absl::string_view value) {
    if (out_->kinds.contains(path_)) {
      for (const KindDoc& kind : out_->kinds[path_]) {
        for (const KindDoc::Field& field : kind.fields) {
          if (field.info.name == name) return false;  // in the table of the kinds' fields
        }
      }
    }
    EXPECT_NE(help, "") << PathOf(name) << " has no help text";
    bool has_default = !value.empty();
    // Such a help text says itself what holds without the field.
    for (const char* words : {"required", "without a ", "by default"}) {
      has_default = has_default && !absl::StrContains(help, words);
    }
    out_->rows.push_back(
        {path_, std::string(name), std::string(help), std::move(values), has_default ? Code(value) : ""});
    return false;
  }

  JobFields* const out_;
  const std::string path_;
};

// The fields of the group `path` and those below it, or only some of them.
inline std::string FieldTable(const JobFields& fields, const std::string& path,
                              const std::vector<std::string>& only = {}) {
  const std::string prefix = path.empty() ? "" : absl::StrCat(path, ".");
  std::string table = "| field | meaning | values | default |\n|---|---|---|---|\n";
  for (const FieldRow& row : fields.rows) {
    const std::string full = absl::StrCat(row.group, row.group.empty() ? "" : ".", row.name);
    if (!absl::StartsWith(full, prefix)) continue;
    const std::string name = full.substr(prefix.size());
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
    absl::StrAppend(&table, "| ", Code(name), " | ", row.help, " | ", row.values, " | ", row.default_value,
                    " |\n");
  }
  return table;
}

// The kinds of the group `path`, and then their fields. A default value is given with the field if all kinds
// agree about it, and with each kind otherwise.
inline std::string KindTables(const JobFields& fields, const std::string& path) {
  const std::vector<KindDoc>& kinds = fields.kinds.at(path);
  struct Row {
    KindDoc::Field field;
    std::vector<std::string> kinds;
    bool same_default = true;
  };
  std::vector<Row> rows;
  const auto find = [&](const FieldInfo& info) {
    return std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
      return row.field.info.name == info.name && row.field.info.help == info.help &&
             row.field.info.range.ToString() == info.range.ToString();
    });
  };
  for (const KindDoc& kind : kinds) {
    for (const KindDoc::Field& field : kind.fields) {
      auto row = find(field.info);
      if (row == rows.end()) row = rows.insert(rows.end(), {field, {}});
      row->kinds.push_back(Code(kind.name));
      row->same_default = row->same_default && row->field.default_value == field.default_value;
    }
  }
  std::string table = "| kind | meaning | fields |\n|---|---|---|\n";
  for (const KindDoc& kind : kinds) {
    std::vector<std::string> names;
    for (const KindDoc::Field& field : kind.fields) {
      const auto row = find(field.info);
      if (row->same_default && row->kinds.size() == kinds.size()) continue;  // "all" in the next table
      std::string name = Code(field.info.name);
      if (!row->same_default) absl::StrAppend(&name, " (", DefaultText(field.info, field.default_value), ")");
      names.push_back(std::move(name));
    }
    const std::string reference = kind.reference.empty() ? "" : absl::StrCat(" [", kind.reference, "]");
    absl::StrAppend(&table, "| ", Code(kind.name), " | ", kind.summary, reference, " | ",
                    absl::StrJoin(names, ", "), " |\n");
  }
  if (rows.empty()) return table;
  absl::StrAppend(&table, "\n| field | of the kinds | meaning | values | default |\n|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    const FieldInfo& info = row.field.info;
    const bool list = std::holds_alternative<std::vector<int>>(row.field.default_value);
    const std::string values =
        info.choices.empty() ? (list ? ListText(info.range) : RangeText(info.range))
                             : absl::StrJoin(info.choices, ", ", [](std::string* out, absl::string_view c) {
                                 absl::StrAppend(out, Code(c));
                               });
    absl::StrAppend(&table, "| ", Code(info.name), " | ",
                    row.kinds.size() == kinds.size() ? "all" : absl::StrJoin(row.kinds, ", "), " | ",
                    info.help, " | ", values, " | ",
                    row.same_default ? DefaultText(info, row.field.default_value) : "by kind", " |\n");
  }
  return table;
}

// `text` with the tables between its markers `<!-- generated: NAME -->` and `<!-- end -->`. Removes from
// `tables` those that it has used.
inline std::string WithTables(const std::string& text, std::map<std::string, std::string>* tables) {
  const std::string kBegin = "<!-- generated: ", kBeginEnd = " -->\n", kEnd = "<!-- end -->";
  std::string result;
  size_t at = 0;
  while (true) {
    const size_t begin = text.find(kBegin, at);
    if (begin == std::string::npos) return result + text.substr(at);
    const size_t name = begin + kBegin.size();
    const size_t name_end = text.find(kBeginEnd, name);
    const size_t end = text.find(kEnd, name);
    if (name_end == std::string::npos || end == std::string::npos) {
      ADD_FAILURE() << "the marker at byte " << begin << " is not complete";
      return text;
    }
    const auto table = tables->extract(text.substr(name, name_end - name));
    if (table.empty()) {
      ADD_FAILURE() << "there is no table " << text.substr(name, name_end - name) << ", or it is used twice";
      return text;
    }
    result += text.substr(at, name_end + kBeginEnd.size() - at) + "\n" + table.mapped() + "\n";
    at = end;
  }
}

// Compares the tables of the document at `path`, whose name in errors is `name`, with `tables`. Writes them
// instead if TANDEM_REGENERATE_DOCS is set.
inline void CompareWithDocument(const std::string& path, const std::string& name,
                                std::map<std::string, std::string> tables) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string expected = WithTables(text.str(), &tables);
  for (const auto& [table, rows] : tables) ADD_FAILURE() << name << " has no table '" << table << "'";
  if (std::getenv("TANDEM_REGENERATE_DOCS") != nullptr) {
    std::ofstream(path) << expected;
    return;
  }
  EXPECT_TRUE(text.str() == expected)
      << name << " differs from the fields of a job file; run this test with TANDEM_REGENERATE_DOCS=1 set";
}

}  // namespace tandem::worker

#endif  // TANDEM_TESTS_WORKER_JOB_DOCUMENT_TABLES_H_
