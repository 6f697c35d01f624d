#ifndef TANDEM_BASE_JSON_H_
#define TANDEM_BASE_JSON_H_

// nlohmann's parser, compiled once: it is all header, and takes a second in each source that calls it. Who
// uses what comes back includes nlohmann/json.hpp.

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem {

// is_discarded() when `text` is no JSON. Never throws.
nlohmann::json ParseJson(absl::string_view text);
// The same, with the names of objects in the text's order, not in the alphabet's.
nlohmann::ordered_json ParseOrderedJson(absl::string_view text);

}  // namespace tandem

#endif  // TANDEM_BASE_JSON_H_
