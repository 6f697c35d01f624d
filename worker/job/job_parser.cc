// SPDX-License-Identifier: Apache-2.0
#include "worker/job/job_parser.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"
#include "worker/job/fields.h"
#include "worker/job/job_errors.h"
#include "worker/job/job_schema.h"
#include "yaml-cpp/yaml.h"

namespace tandem::worker {
namespace {

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
      value_.reset(YAML::Load(std::string(text_.substr(equals + 1))));
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

}  // namespace

absl::StatusOr<JobSpec> ParseJob(absl::string_view text, absl::string_view file_name,
                                 absl::Span<const std::string> overrides) {
  JobErrors errors(file_name);
  JobSpec job;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.empty() || documents[0].IsNull()) {
      errors.Add("", 0, "the job file is empty");
    } else if (documents.size() > 1) {
      errors.Add("", documents[1].Mark().line + 1,
                 "a job file holds one YAML document, this is a second one");
    } else if (!documents[0].IsMap()) {
      errors.Add("", documents[0].Mark().line + 1, "a job file is a mapping: lines of 'field: value'");
    } else {
      YAML::Node root = documents[0];
      for (const std::string& override : overrides) root.reset(Override(override, &errors).ApplyTo(root));
      ReadFields(root, "", &errors, [&](Fields& fields) { DescribeJob(fields, job); });
    }
  } catch (const YAML::Exception& e) {
    errors.Add("", e.mark.is_null() ? 0 : e.mark.line + 1, absl::StrCat("this is no YAML: ", e.msg));
  }
  TANDEM_RETURN_IF_ERROR(errors.ToStatus());
  return job;
}

absl::StatusOr<JobSpec> LoadJob(const std::string& path, absl::Span<const std::string> overrides) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Annotate(text.status(), "the job file");
  return ParseJob(*text, path, overrides);
}

std::string JobToYaml(const JobSpec& job) {
  JobSpec copy = job;
  YAML::Node root = WriteFields([&](Fields& fields) { DescribeJob(fields, copy); });
  return absl::StrCat(YAML::Dump(root), "\n");
}

}  // namespace tandem::worker
