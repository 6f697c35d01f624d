// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/job/rl_parser.h"

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "worker/job/load_yaml.h"
#include "worker/job/parse_fields.h"
#include "worker/job/path_expansion.h"
#include "worker/rl/job/rl_schema.h"

namespace tandem::rl {
namespace {

absl::StatusOr<RlSpec> Parse(absl::string_view text, const worker::JobOrigin& file,
                             absl::Span<const std::string> overrides) {
  RlSpec job;
  TANDEM_RETURN_IF_ERROR(worker::ParseJobFields(text, file, overrides,
                                                [&](worker::Fields& fields) { DescribeRlJob(fields, job); }));
  return job;
}

}  // namespace

absl::StatusOr<RlSpec> ParseRlJob(absl::string_view text, absl::string_view file_name,
                                  absl::Span<const std::string> overrides) {
  return Parse(text, {.name = std::string(file_name)}, overrides);
}

absl::StatusOr<RlSpec> ParseWholeRlJob(absl::string_view text, absl::string_view file_name) {
  try {
    const YAML::Node root = worker::LoadYaml(text);
    if (root.IsMap() && root["extend"].IsDefined()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_name, ": the field 'extend' is only allowed in a job file of its own"));
    }
  } catch (const YAML::Exception&) {
    // The parser says what is wrong.
  }
  return ParseRlJob(text, file_name);
}

absl::StatusOr<RlSpec> LoadRlJob(const std::string& path, absl::Span<const std::string> overrides) {
  const absl::StatusOr<std::string> text = ReadFile(path, worker::kMaxYamlBytes);
  if (!text.ok()) return Annotate(text.status(), "the job file");
  return Parse(*text, {.name = path, .directory = worker::DirectoryOf(path)}, overrides);
}

std::string RlJobToYaml(const RlSpec& job) {
  RlSpec copy = job;
  const YAML::Node root = worker::WriteFields([&](worker::Fields& fields) { DescribeRlJob(fields, copy); });
  return absl::StrCat(YAML::Dump(root), "\n");
}

}  // namespace tandem::rl
