#include "rpc/remote/call/invocation.h"

namespace tandem::rpc::remote {

Tensor Context::AnswerTensor(DType dtype, Tensor::Shape shape) const {
  Tensor plain = Tensor::Allocate(dtype, std::move(shape));
  if (plain.bytes() == 0) return plain;
  std::shared_ptr<char> memory = call_->AnswerMemory(plain.bytes());
  return memory == nullptr ? plain : Tensor::Over(std::move(memory), dtype, plain.shape());
}

}  // namespace tandem::rpc::remote
