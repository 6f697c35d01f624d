// SPDX-License-Identifier: Apache-2.0
// The headers that nearly every source includes, compiled once (TANDEM_PRECOMPILE). Must not be included by
// hand: each file still includes what it uses.
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

// The headers that every .pb.h includes. Compiling them takes more time than the .pb.h itself.
#include "google/protobuf/arena.h"
#include "google/protobuf/extension_set.h"
#include "google/protobuf/generated_enum_reflection.h"
#include "google/protobuf/generated_message_bases.h"
#include "google/protobuf/generated_message_reflection.h"
#include "google/protobuf/generated_message_util.h"
#include "google/protobuf/message.h"
#include "google/protobuf/repeated_field.h"
#include "google/protobuf/unknown_field_set.h"

// The header that Highway includes. Compiling it takes more time than a kernel itself.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#endif  // TANDEM_CMAKE_PRECOMPILED_H_
