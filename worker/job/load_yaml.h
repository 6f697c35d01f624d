// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_LOAD_YAML_H_
#define TANDEM_WORKER_JOB_LOAD_YAML_H_

// Parses YAML from users and from files of others. All such YAML goes through this function, because
// YAML::Load of yaml-cpp 0.7 ignores text after the document, and YAML::LoadAll takes all memory if that text
// begins with a comma.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "yaml-cpp/yaml.h"

namespace tandem::worker {

// The largest text that is read. The parser takes seconds for each MiB of some texts.
inline constexpr size_t kMaxYamlBytes = size_t{256} << 10;

// Returns the only document of `text`, or a null node if it has none. Throws YAML::Exception, with the line,
// if the text is no YAML, if anything but white space and comments follows the document, or if it has more
// than kMaxYamlBytes.
YAML::Node LoadYaml(absl::string_view text);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_LOAD_YAML_H_
