// SPDX-License-Identifier: Apache-2.0
#include "worker/report/tensorboard_writer.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tandem/v1/event_file.pb.h"
#include "worker/report/event_record.h"

namespace tandem::worker {
namespace {

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "host";
}

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

TensorboardWriter::TensorboardWriter(std::string path, Clock* clock)
    : path_(std::move(path)), clock_(clock), out_(path_, std::ios::binary | std::ios::trunc) {}

absl::StatusOr<std::unique_ptr<TensorboardWriter>> TensorboardWriter::Open(const std::string& directory,
                                                                           Clock* clock) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot make TensorBoard's directory ", directory, ": ", error.message()));
  }
  // TensorBoard recognizes event files by "tfevents" and orders them by name.
  const std::string stem = absl::StrCat(directory, "/events.out.tfevents.", absl::ToUnixSeconds(clock->Now()),
                                        ".", HostName(), ".", ::getpid());
  std::string path = stem;
  for (int i = 1; std::filesystem::exists(path, error); ++i) path = absl::StrCat(stem, ".", i);
  std::unique_ptr<TensorboardWriter> writer(new TensorboardWriter(std::move(path), clock));
  v1::ScalarEvent version;
  version.set_wall_time(Seconds(clock->Now()));
  version.set_file_version("brain.Event:2");
  absl::MutexLock lock(&writer->mutex_);
  TANDEM_RETURN_IF_ERROR(writer->Append(version.SerializeAsString()));
  return writer;
}

absl::Status TensorboardWriter::Write(int64_t step, absl::Span<const Scalar> scalars) {
  v1::ScalarEvent event;
  event.set_wall_time(Seconds(clock_->Now()));
  event.set_step(step);
  for (const auto& [tag, number] : scalars) {
    v1::ScalarValue* const value = event.mutable_summary()->add_value();
    value->set_tag(std::string(tag));
    value->set_simple_value(static_cast<float>(number));
  }
  absl::MutexLock lock(&mutex_);
  return Append(event.SerializeAsString());
}

absl::Status TensorboardWriter::Append(const std::string& event) {
  const std::string record = EventRecord(event);
  out_.write(record.data(), static_cast<std::streamsize>(record.size()));
  out_.flush();
  return out_ ? absl::OkStatus()
              : absl::UnavailableError(absl::StrCat("cannot write TensorBoard's file ", path_));
}

}  // namespace tandem::worker
