// SPDX-License-Identifier: Apache-2.0
#include "rpc/caller.h"

#include "absl/strings/str_cat.h"
#include "tandem/v1/caller.pb.h"

namespace tandem::rpc {
namespace {
constexpr size_t kMaxNameBytes = 256;
}  // namespace

std::string Caller::ToBytes() const {
  tandem::v1::Caller proto;
  proto.set_run_id(run_id);
  proto.set_epoch(epoch);
  proto.set_member(member);
  proto.set_token(token);
  proto.set_life(life);
  proto.set_key_id(key_id);
  proto.set_shards(shards);
  return proto.SerializeAsString();
}

Caller Caller::FromBytes(absl::string_view bytes) {
  tandem::v1::Caller proto;
  if (bytes.size() > kMaxCallerBytes || !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return {.epoch = -1};
  }
  return {.run_id = proto.run_id(),
          .epoch = proto.epoch(),
          .member = proto.member(),
          .token = proto.token(),
          .key_id = proto.key_id(),
          .life = proto.life(),
          .shards = proto.shards()};
}

absl::Status CheckCaller(const Caller& caller) {
  if (caller.epoch >= 0 && caller.run_id.size() <= kMaxNameBytes && caller.member.size() <= kMaxNameBytes &&
      caller.token.size() <= kMaxTokenBytes && caller.key_id.size() <= kMaxKeyIdBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a channel's caller of epoch ", caller.epoch, ", with a run's id of ", caller.run_id.size(),
      " bytes, a member's name of ", caller.member.size(), ", a token of ", caller.token.size(),
      " and an id of its key of ", caller.key_id.size(), ": epochs are at least 0, names have at most ",
      kMaxNameBytes, " bytes, tokens ", kMaxTokenBytes, ", ids of keys ", kMaxKeyIdBytes));
}

}  // namespace tandem::rpc
