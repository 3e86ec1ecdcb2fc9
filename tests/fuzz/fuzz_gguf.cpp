// GGUF files: all of one, and its beginning.
#include "checkpoint/gguf.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace sidestep::fuzz {
namespace {

void check_tensors(const checkpoint::GgufHeader& header, Bytes file_size) {
    Bytes end = 0;
    require(header.data_begin <= file_size, "the data begins in the file");
    for (const TensorInfo& tensor : header.tensors) {
        require(!tensor.type_name.empty(), "a tensor has a type", tensor.name);
        require(tensor.offset + tensor.bytes <= file_size && tensor.offset >= header.data_begin,
                "tensors lie in the file", tensor.name);
        if (tensor.bytes == 0) continue;
        require(tensor.offset >= end, "tensors do not overlap", tensor.name);
        end = tensor.offset + tensor.bytes;
    }
}

}  // namespace
}  // namespace sidestep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sidestep;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    // As if the file were larger than what was read of it, and read in growing pieces.
    const Bytes file_size = size + 4096;
    const auto max = checkpoint::parse_gguf(text, file_size, "f");
    if (max.ok() && max->needs != 0)
        fuzz::require(max->needs > size && max->needs <= file_size,
                      "what is needed is there, and not known yet");
    const auto header = checkpoint::parse_gguf(text, size, "f");
    if (!header.ok()) {
        fuzz::require(header.error().message.size() > 5 && header.error().message.size() < 1000,
                      "a refusal has words");
        fuzz::require(header.error().where.substr(0, 1) == "f", "a refusal names the file",
                      header.error().to_string());
        return 0;
    }
    fuzz::require(header->needs == 0, "a whole file needs no more");
    fuzz::check_tensors(*header, size);
    const auto half = checkpoint::parse_gguf(text.substr(0, size / 2), size, "f");
    fuzz::require(half.ok(), "the beginning of a good file is good",
                  half.ok() ? "" : half.error().to_string());
    if (half->needs == 0)
        fuzz::require(half->tensors.size() == header->tensors.size() && half->metadata == header->metadata,
                      "the header's bytes are enough");
    return 0;
}
