// SPDX-License-Identifier: Apache-2.0
// Implements ReplayHttp for a build without prometheus-cpp.

#include "cli/monitor/page_http.h"
#include "cli/monitor/replay_http.h"

namespace tandem::cli {

absl::StatusOr<std::unique_ptr<ReplayHttp>> ReplayHttp::Start(const std::string& host, int port,
                                                              const replay::ReplayServer*) {
  return PageHttp::Start(host, port, {}).status();  // which says what is missing
}

}  // namespace tandem::cli
