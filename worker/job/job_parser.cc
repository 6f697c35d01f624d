// SPDX-License-Identifier: Apache-2.0
#include "worker/job/job_parser.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/checksummed_file.h"
#include "base/read_file.h"
#include "base/status.h"
#include "worker/job/fields.h"
#include "worker/job/job_errors.h"
#include "worker/job/job_schema.h"
#include "worker/job/load_yaml.h"
#include "worker/job/parse_fields.h"
#include "worker/job/path_expansion.h"
#include "yaml-cpp/yaml.h"

namespace tandem::worker {
namespace {

// A chain of files that extend each other can hardly be longer.
constexpr int kMaxFiles = 16;

// Returns the field that a mapping has instead of `name`: setting one of the two in an override, or in a file
// that extends another, removes the other. Empty for all other fields.
absl::string_view AlternativeOf(absl::string_view name) {
  if (name == "batch_size") return "global_batch_size";
  if (name == "global_batch_size") return "batch_size";
  return "";
}

// Returns the text of a file that a job file names: that file may be from somebody else, and name a pipe.
absl::StatusOr<std::string> ReadNamedFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, ReadableFile::Open(path));
  return file->ReadAll(kMaxYamlBytes);
}

// One `--set`: puts a value at a dotted path, making mappings on the way. Containers on the path are rebuilt
// rather than changed, because an alias may share them with other fields.
class Override {
 public:
  Override(absl::string_view text, JobErrors* errors) : text_(text), errors_(errors) {}

  // `root` with the value in it; `root` itself, and an error noted, when it cannot be put there.
  YAML::Node ApplyTo(const YAML::Node& root) {
    const size_t equals = text_.find('=');
    if (equals == absl::string_view::npos || equals == 0) {
      return Wrong(root, "an override is written key=value, the key a dotted path such as model.kind");
    }
    parts_ = absl::StrSplit(text_.substr(0, equals), '.');
    try {
      value_.reset(LoadYaml(text_.substr(equals + 1)));
    } catch (const YAML::Exception& e) {
      return Wrong(root, absl::StrCat("the value is no YAML: ", e.msg));
    }
    return With(root, 0);
  }

 private:
  const YAML::Node& Wrong(const YAML::Node& unchanged, absl::string_view message) {
    errors_->SetOrigin("--set", text_);
    errors_->Add("--set", 0, message);
    return unchanged;
  }
  std::string PathTo(size_t depth) const {
    return absl::StrJoin(parts_.begin(), parts_.begin() + depth + 1, ".");
  }

  // `at`, the container in which parts_[depth] is looked up, with the value below it.
  YAML::Node With(const YAML::Node& at, size_t depth) {
    if (at.IsSequence()) return WithItem(at, depth);
    if (!at.IsMap()) {
      const std::string path = PathTo(depth - 1);
      return Wrong(at, absl::StrCat("'", path, "' is the plain value '", at.Scalar(),
                                    "'; override it as a whole: --set '", path, "={...}'"));
    }
    const bool last = depth + 1 == parts_.size();
    YAML::Node made(YAML::NodeType::Map);
    bool found = false;
    for (const auto& entry : at) {
      const bool mine = entry.first.IsScalar() && entry.first.Scalar() == parts_[depth];
      if (last && entry.first.IsScalar() && entry.first.Scalar() == AlternativeOf(parts_[depth])) continue;
      if (!mine) {
        made.force_insert(YAML::Node(entry.first), YAML::Node(entry.second));
      } else if (!found && !last && !entry.second.IsNull()) {
        found = true;
        made.force_insert(YAML::Node(entry.first), With(entry.second, depth + 1));
      }
    }
    if (found) return made;
    errors_->SetOrigin(PathTo(depth), text_);
    made.force_insert(parts_[depth], last ? value_ : With(YAML::Node(YAML::NodeType::Map), depth + 1));
    return made;
  }

  YAML::Node WithItem(const YAML::Node& list, size_t depth) {
    size_t index;
    if (!absl::SimpleAtoi(parts_[depth], &index) || index >= list.size()) {
      return Wrong(list, absl::StrCat("'", parts_[depth], "' is no position in a list of ", list.size(),
                                      " (the first is 0)"));
    }
    const bool last = depth + 1 == parts_.size();
    if (last) errors_->SetOrigin(PathTo(depth), text_);
    YAML::Node made(YAML::NodeType::Sequence);
    for (size_t i = 0; i < list.size(); ++i) {
      const YAML::Node item = list[i];
      made.push_back(i != index ? item : last ? value_ : With(item, depth + 1));
    }
    return made;
  }

  const absl::string_view text_;
  JobErrors* const errors_;
  std::vector<std::string> parts_;
  YAML::Node value_;
};

// Reads job files and the files that they extend, and notes which part of the job comes from where.
class FileReader {
 public:
  explicit FileReader(JobErrors* errors) : errors_(errors) {}

  // Returns the mapping of `text`, merged into that of the file which it extends, or null after an error.
  YAML::Node Parse(const std::string& text, const JobOrigin& file) {
    YAML::Node parsed;
    try {
      parsed.reset(LoadYaml(text));
    } catch (const YAML::Exception& e) {
      return Wrong(file, e.mark.is_null() ? 0 : e.mark.line + 1, absl::StrCat("this is no YAML: ", e.msg));
    }
    const YAML::Node root = parsed;
    if (root.IsNull()) return Wrong(file, 0, "the job file is empty");
    if (!root.IsMap()) {
      return Wrong(file, root.Mark().line + 1, "a job file is a mapping: lines of 'field: value'");
    }
    const YAML::Node extended = root["extend"];
    if (!extended.IsDefined()) return root;
    const int line = extended.Mark().line + 1;
    if (!extended.IsScalar()) return Wrong(file, line, "field 'extend' must be the path of a job file");
    const absl::StatusOr<std::string> path = ResolvePath(extended.Scalar(), file.directory);
    if (!path.ok()) return Wrong(file, line, absl::StrCat("field 'extend' ", path.status().message()));
    if (file.order + 1 >= kMaxFiles) {
      return Wrong(file, line,
                   absl::StrCat("field 'extend': more than ", kMaxFiles,
                                " files extend each other; does one extend itself?"));
    }
    const absl::StatusOr<std::string> base_text = ReadNamedFile(*path);
    if (!base_text.ok())
      return Wrong(file, line, absl::StrCat("field 'extend': ", base_text.status().message()));
    const JobOrigin base{.name = *path, .directory = DirectoryOf(*path), .order = file.order + 1};
    const YAML::Node below = Parse(*base_text, base);
    if (!below.IsMap()) return below;
    return Merge(below, root, "", base);
  }

 private:
  YAML::Node Wrong(const JobOrigin& file, int line, absl::string_view message) {
    errors_->AddTo(file, line, message);
    return YAML::Node();
  }

  // Returns the mapping `over` and the fields that only `below` has. Fields that are mappings in both are
  // merged as well; any other value of `over` replaces that of `below`, which comes from `origin`. A mapping
  // of another kind replaces that of `below` too, because kinds have different fields; only models may have
  // those of all kinds. `path` is that of the mapping: "" or "train.".
  YAML::Node Merge(const YAML::Node& below, const YAML::Node& over, const std::string& path,
                   const JobOrigin& origin) {
    YAML::Node made(YAML::NodeType::Map);
    std::vector<std::string> given;
    for (const auto& entry : over) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (path.empty() && name == "extend") continue;
      given.push_back(name);
      const YAML::Node other = Find(below, name);
      const std::string field = path + name;
      if (entry.second.IsMap() && other.IsMap() && (field == "model" || !OtherKind(other, entry.second))) {
        const JobOrigin* own = errors_->FindOrigin(field);
        const JobOrigin inherited = own == nullptr ? origin : *own;
        errors_->ClearOrigin(field);
        made.force_insert(YAML::Node(entry.first), Merge(other, entry.second, field + ".", inherited));
      } else {
        errors_->ClearOrigins(field);
        made.force_insert(YAML::Node(entry.first), YAML::Node(entry.second));
      }
    }
    for (const auto& entry : below) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if ((path.empty() && name == "extend") || absl::c_linear_search(given, name) ||
          absl::c_linear_search(given, AlternativeOf(name))) {
        continue;
      }
      if (errors_->FindOrigin(path + name) == nullptr) errors_->SetOrigin(path + name, origin);
      made.force_insert(YAML::Node(entry.first), YAML::Node(entry.second));
    }
    return made;
  }

  static bool OtherKind(const YAML::Node& below, const YAML::Node& over) {
    const YAML::Node old_kind = Find(below, "kind"), new_kind = Find(over, "kind");
    return new_kind.IsScalar() && (!old_kind.IsScalar() || old_kind.Scalar() != new_kind.Scalar());
  }

  static YAML::Node Find(const YAML::Node& map, const std::string& name) {
    for (const auto& entry : map) {
      if (entry.first.IsScalar() && entry.first.Scalar() == name) return entry.second;
    }
    return YAML::Node();
  }

  JobErrors* const errors_;
};

}  // namespace

absl::Status ParseJobFields(absl::string_view text, const JobOrigin& file,
                            absl::Span<const std::string> overrides,
                            const std::function<void(Fields&)>& describe) {
  JobErrors errors(file.name, file.directory);
  try {
    YAML::Node root = FileReader(&errors).Parse(std::string(text), file);
    if (root.IsMap()) {
      for (const std::string& override : overrides) root.reset(Override(override, &errors).ApplyTo(root));
      ReadFields(root, "", &errors, describe);
    }
  } catch (const YAML::Exception& e) {
    errors.Add("", e.mark.is_null() ? 0 : e.mark.line + 1, absl::StrCat("this is no YAML: ", e.msg));
  }
  return errors.ToStatus();
}

namespace {

absl::StatusOr<JobSpec> Parse(absl::string_view text, const JobOrigin& file,
                              absl::Span<const std::string> overrides) {
  JobSpec job;
  TANDEM_RETURN_IF_ERROR(
      ParseJobFields(text, file, overrides, [&](Fields& fields) { DescribeJob(fields, job); }));
  return job;
}

}  // namespace

absl::StatusOr<JobSpec> ParseJob(absl::string_view text, absl::string_view file_name,
                                 absl::Span<const std::string> overrides) {
  return Parse(text, {.name = std::string(file_name)}, overrides);
}

absl::StatusOr<JobSpec> LoadJob(const std::string& path, absl::Span<const std::string> overrides) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxYamlBytes);
  if (!text.ok()) return Annotate(text.status(), "the job file");
  return Parse(*text, {.name = path, .directory = DirectoryOf(path)}, overrides);
}

bool IsRlJob(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxYamlBytes);
  if (!text.ok()) return false;
  try {
    const YAML::Node root = LoadYaml(*text);
    return root.IsMap() && root["env"].IsDefined();
  } catch (const YAML::Exception&) {
    return false;
  }
}

std::string JobToYaml(const JobSpec& job) {
  JobSpec copy = job;
  YAML::Node root = WriteFields([&](Fields& fields) { DescribeJob(fields, copy); });
  return absl::StrCat(YAML::Dump(root), "\n");
}

}  // namespace tandem::worker
