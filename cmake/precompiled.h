// What nearly every source includes, compiled once (TANDEM_PRECOMPILE). Not to be included by hand: each file
// still names what it uses.
#ifndef TANDEM_CMAKE_PRECOMPILED_H_
#define TANDEM_CMAKE_PRECOMPILED_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#endif  // TANDEM_CMAKE_PRECOMPILED_H_
