#ifndef TANDEM_PS_CLIENT_PUSH_ENCODER_H_
#define TANDEM_PS_CLIENT_PUSH_ENCODER_H_

// Turns the parts of a push into one request per server.

#include <cstdint>
#include <vector>

#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "ps/client/client.h"
#include "ps/partition/shard_map.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// What goes to one server: the caller adds worker, epoch, sequence and step to the header.
struct EncodedPush {
  v1::PushRequest header;
  Bytes payload;
};

// Scales the gradients of tables whose L2 norm, over all of a table's parts, is above norms[p] (0: no bound)
// down to it. Parts then point into `scaled`.
void ClipGlobalNorms(const std::vector<uint32_t>& dims, const std::vector<float>& norms,
                     std::vector<PushPart>* parts, std::vector<std::vector<float>>* scaled);

// One element per server, each with a slice for every part (an empty one when the server owns none of its
// ids). dims[p] is the dimension of parts[p]'s table. Everything is copied into buffers of `pool`; MEAN bags
// are turned into SUM bags whose gradient is divided by the size of the whole bag.
std::vector<EncodedPush> EncodePush(const ShardMap& map, const std::vector<PushPart>& parts,
                                    const std::vector<uint32_t>& dims, BufferPool* pool);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PUSH_ENCODER_H_
