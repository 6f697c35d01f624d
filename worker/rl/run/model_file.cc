// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/run/model_file.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/checksummed_file.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "worker/rl/envs/environment.h"
#include "worker/rl/job/rl_parser.h"

namespace tandem::rl {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

// Models are small; a file beyond this is something else.
constexpr size_t kMaxFileBytes = size_t{1} << 32;
// The library finds a member of an object by comparing it with all before it.
constexpr size_t kMaxHeaderBytes = size_t{256} << 10;

// An array of the model.
struct Array {
  std::string name;
  std::vector<int> shape;
  absl::Span<float> values;
};

std::vector<Array> ArraysOf(Policy& policy) {
  worker::Parameters& parameters = policy.parameters();
  std::vector<Array> arrays;
  const auto add = [&](const std::vector<worker::ParameterBlock>& blocks, absl::Span<float> values) {
    for (const worker::ParameterBlock& block : blocks)
      arrays.push_back({block.name, block.shape, values.subspan(block.offset, block.size)});
  };
  add(parameters.blocks(), parameters.values());
  add(parameters.running_average_blocks(), parameters.running_averages());
  return arrays;
}

absl::Status Damaged(const std::string& path, absl::string_view reason) {
  return absl::DataLossError(absl::StrCat("'", path, "' is no model of tandem rl, or is damaged: ", reason));
}

// Reads the values of `array` from the data that follows the header.
absl::Status ReadArray(const std::string& path, const Json& header, absl::string_view data,
                       const Array& array) {
  const auto entry = header.find(array.name);
  if (entry == header.end()) return Damaged(path, absl::StrCat("it has no array '", array.name, "'"));
  if (!entry->is_object() || entry->value("dtype", Json()) != Json("F32")) {
    return Damaged(path, absl::StrCat("the array '", array.name, "' is not of dtype F32"));
  }
  if (entry->value("shape", Json()) != Json(array.shape)) {
    return Damaged(path, absl::StrCat("the array '", array.name, "' has the shape ",
                                      entry->value("shape", Json()).dump(), "; the job's policy has ",
                                      Json(array.shape).dump()));
  }
  const Json offsets = entry->value("data_offsets", Json());
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return Damaged(path, absl::StrCat("the array '", array.name, "' has no data_offsets"));
  }
  const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  const size_t bytes = array.values.size() * sizeof(float);
  if (begin > end || end > data.size() || end - begin != bytes) {
    return Damaged(path, absl::StrCat("the array '", array.name, "' lies at bytes ", begin, " to ", end,
                                      " of ", data.size(), " and must have ", bytes));
  }
  std::memcpy(array.values.data(), data.data() + begin, bytes);
  for (const float value : array.values) {
    if (!std::isfinite(value))
      return Damaged(path, absl::StrCat("the array '", array.name, "' has a value that is not finite"));
    if (value < 0 && (array.name == "observations.variance" || array.name == "observations.count"))
      return Damaged(path, absl::StrCat("the array '", array.name, "' has the value ", value, ", below 0"));
  }
  return absl::OkStatus();
}

// Refuses a job whose policy cannot be in a file with `bytes` bytes of values, before the policy is made: its
// layers may be so large that there is no memory for them.
absl::Status CheckSize(const std::string& path, const LearnerOptions& learner, size_t bytes) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                          MakeEnvironment(learner.environment));
  double parameters = 0, in = static_cast<double>(environment->spec().observation_size);
  for (const int width : learner.policy.hidden) {
    parameters += (in + 1) * width;
    in = width;
  }
  if (parameters * sizeof(float) <= static_cast<double>(bytes)) return absl::OkStatus();
  return Damaged(path, absl::StrCat("the hidden layers of its job have ", parameters,
                                    " parameters, and the file has ", bytes, " bytes of values"));
}

// Writes arrays with a text of metadata each.
absl::Status WriteArrays(const std::string& path, const Json& metadata, const std::vector<Array>& arrays) {
  Json header;
  header["__metadata__"] = metadata;
  std::string data;
  for (const Array& array : arrays) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(array.values.data()), array.values.size() * sizeof(float));
    header[array.name] = {{"dtype", "F32"}, {"shape", array.shape}, {"data_offsets", {begin, data.size()}}};
  }
  // A path of another encoding than UTF-8 must not end the process.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // the format wants aligned arrays
  const uint64_t size = text.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  absl::StrAppend(&bytes, text, data);
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot make the directory of the model '", path, "': ", error.message()));
  }
  return WriteFileAtomically(path, bytes);
}

Json MetadataOf(const RlSpec& job) { return {{"format", "tandem-rl-1"}, {"job", RlJobToYaml(job)}}; }

// The parts of a file, checked as far as this is possible without the job.
struct Parts {
  Json header, metadata;
  absl::string_view data;  // the arrays; part of the file's bytes
  RlSpec job;
};

absl::StatusOr<Parts> Split(const std::string& path, absl::string_view bytes) {
  Parts parts;
  uint64_t size = 0;
  if (bytes.size() < sizeof size) return Damaged(path, "it is shorter than 8 bytes");
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size > kMaxHeaderBytes || size > bytes.size() - sizeof size) {
    return Damaged(path, absl::StrCat("its header would have ", size, " bytes"));
  }
  parts.header = ParseOrderedJson(bytes.substr(sizeof size, size));
  if (parts.header.is_discarded() || !parts.header.is_object())
    return Damaged(path, "its header is no JSON object");
  parts.metadata = parts.header.value("__metadata__", Json());
  const Json& metadata = parts.metadata;
  if (!metadata.is_object() || metadata.value("format", Json()) != Json("tandem-rl-1") ||
      !metadata.contains("job") || !metadata["job"].is_string()) {
    return Damaged(path, "its header has no metadata with the format tandem-rl-1 and a job");
  }
  parts.data = bytes.substr(sizeof size + size);
  const absl::StatusOr<RlSpec> job =
      ParseWholeRlJob(metadata["job"].get<std::string>(), absl::StrCat(path, " (job)"));
  if (!job.ok()) return Damaged(path, job.status().message());
  parts.job = *job;
  return parts;
}

// The arrays of a learner's state. The values are borrowed.
std::vector<Array> StateArrays(LearnerState& state) {
  std::vector<Array> arrays;
  const auto add = [&](const char* name, std::vector<float>& values) {
    if (!values.empty()) arrays.push_back({name, {static_cast<int>(values.size())}, absl::MakeSpan(values)});
  };
  add("state.optimizer", state.optimizer.slots);
  add("state.target", state.target);
  return arrays;
}

absl::Status CheckSameJob(const std::string& path, const LearnerOptions& have, const LearnerOptions& wanted) {
  const auto differ = [&](const char* what, const std::string& one, const std::string& other) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint '", path, "' has the ", what, " '", one, "', and the job '", other,
                     "'; give another checkpoint.file, or begin without --resume"));
  };
  if (have.environment.kind != wanted.environment.kind)
    return differ("environment", have.environment.kind, wanted.environment.kind);
  if (have.algorithm.kind != wanted.algorithm.kind)
    return differ("algorithm", have.algorithm.kind, wanted.algorithm.kind);
  if (have.policy.hidden != wanted.policy.hidden)
    return differ("hidden layers", absl::StrJoin(have.policy.hidden, ","),
                  absl::StrJoin(wanted.policy.hidden, ","));
  if (have.policy.normalize_observations != wanted.policy.normalize_observations) {
    return differ("normalize_observations", have.policy.normalize_observations ? "true" : "false",
                  wanted.policy.normalize_observations ? "true" : "false");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveModel(const RlSpec& job, Policy& policy, const std::string& path) {
  return WriteArrays(path, MetadataOf(job), ArraysOf(policy));
}

absl::StatusOr<LoadedPolicy> LoadModel(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxFileBytes);
  if (!bytes.ok()) return Annotate(bytes.status(), "the model");
  TANDEM_ASSIGN_OR_RETURN(const Parts parts, Split(path, *bytes));
  LoadedPolicy loaded;
  loaded.job = parts.job;
  TANDEM_RETURN_IF_ERROR(CheckSize(path, loaded.job.learner, parts.data.size()));
  TANDEM_ASSIGN_OR_RETURN(loaded.policy, MakePolicy(loaded.job.learner));
  for (const Array& array : ArraysOf(*loaded.policy))
    TANDEM_RETURN_IF_ERROR(ReadArray(path, parts.header, parts.data, array));
  return loaded;
}

absl::Status SaveCheckpoint(const RlSpec& job, Learner& learner, const std::string& path,
                            std::optional<double> reached) {
  LearnerState state = learner.state();
  std::vector<Array> arrays = ArraysOf(learner.policy());
  const std::vector<Array> of_state = StateArrays(state);
  arrays.insert(arrays.end(), of_state.begin(), of_state.end());
  Json metadata = MetadataOf(job);
  metadata["env_steps"] = absl::StrCat(state.env_steps);
  metadata["updates"] = absl::StrCat(state.updates);
  metadata["version"] = absl::StrCat(state.version);
  metadata["optimizer_steps"] = absl::StrCat(state.optimizer.steps);
  if (reached.has_value()) metadata["reached_return"] = absl::StrCat(*reached);
  uint32_t crc = 0;
  for (const Array& array : arrays) {
    crc =
        Crc32({reinterpret_cast<const char*>(array.values.data()), array.values.size() * sizeof(float)}, crc);
  }
  metadata["crc32"] = absl::StrCat(crc);
  return WriteArrays(path, metadata, arrays);
}

absl::StatusOr<std::string> RestoreCheckpoint(const RlSpec& job, const std::string& bytes,
                                              const std::string& path, Learner* learner) {
  TANDEM_ASSIGN_OR_RETURN(const Parts parts, Split(path, bytes));
  const auto number = [&](const char* name, uint64_t* value) {
    const Json text = parts.metadata.value(name, Json());
    if (text.is_string() && absl::SimpleAtoi(text.get<std::string>(), value)) return absl::OkStatus();
    return Damaged(path, absl::StrCat("it has no '", name, "', so it is no checkpoint of a run"));
  };
  LearnerState state = learner->state();  // with the sizes of this job
  uint64_t crc = 0;
  TANDEM_RETURN_IF_ERROR(number("crc32", &crc));
  if (Crc32(parts.data) != crc) return Damaged(path, "the CRC-32 of its arrays differs");
  TANDEM_RETURN_IF_ERROR(CheckSameJob(path, parts.job.learner, job.learner));
  TANDEM_RETURN_IF_ERROR(number("env_steps", &state.env_steps));
  TANDEM_RETURN_IF_ERROR(number("updates", &state.updates));
  TANDEM_RETURN_IF_ERROR(number("version", &state.version));
  TANDEM_RETURN_IF_ERROR(number("optimizer_steps", &state.optimizer.steps));
  std::vector<Array> arrays = ArraysOf(learner->policy());
  const std::vector<Array> of_state = StateArrays(state);
  arrays.insert(arrays.end(), of_state.begin(), of_state.end());
  for (const Array& array : arrays) TANDEM_RETURN_IF_ERROR(ReadArray(path, parts.header, parts.data, array));
  TANDEM_RETURN_IF_ERROR(Annotate(learner->Restore(state), absl::StrCat("the checkpoint '", path, "'")));
  if (state.env_steps >= job.learner.env_steps) {
    return absl::StrCat("the run of '", path, "' has done ", state.env_steps,
                        " steps, and stop.env_steps is ", job.learner.env_steps);
  }
  const Json reached = parts.metadata.value("reached_return", Json());
  double value = 0;
  if (job.mean_return.has_value() && reached.is_string() &&
      absl::SimpleAtod(reached.get<std::string>(), &value) && value >= *job.mean_return) {
    return absl::StrCat("the run of '", path, "' has reached a mean return of ", value,
                        ", and stop.mean_return is ", *job.mean_return);
  }
  return std::string();
}

}  // namespace tandem::rl
