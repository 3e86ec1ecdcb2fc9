// Headers of safetensors files. The first byte is the size of the data behind the header; the rest is the
// header.
#include "checkpoint/layout.hpp"
#include "checkpoint/safetensors.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace sidestep::fuzz {
namespace {

using checkpoint::SafetensorsHeader;

void check_header(const SafetensorsHeader& header, Bytes file_size, bool strict) {
    Bytes end = header.data_begin;
    for (const TensorInfo& tensor : header.tensors) {
        require(tensor.offset == end, "tensors follow one another", tensor.name);
        end += tensor.bytes;
        require(end <= file_size, "tensors lie in the file", tensor.name);
        require(strict ? tensor.dtype != Dtype::other : true, "types are known", tensor.type_name);
        if (tensor.dtype == Dtype::other) continue;
        const auto bytes = checkpoint::tensor_bytes(tensor.dtype, tensor.shape);
        require(bytes.ok() && *bytes == tensor.bytes, "shape and type make the size", tensor.name);
    }
    require(!strict || end == file_size, "the last tensor ends the file");
}

// Whatever was read is laid out, along any axis that it has, or refused.
void check_layouts(const SafetensorsHeader& header) {
    for (const TensorInfo& tensor : header.tensors) {
        const int axes = static_cast<int>(std::min<std::size_t>(tensor.shape.size(), 8));
        for (int axis = -1; axis < axes; ++axis) {
            constexpr std::size_t places = 3;
            const auto plan = checkpoint::lay_out({tensor}, places, Layout::by_axis, {axis});
            if (!plan.ok()) {
                require(plan.error().code == ErrorCode::invalid_argument, "a cut is refused with words",
                        plan.error().to_string());
                continue;
            }
            Bytes bytes = 0;
            for (std::size_t place = 0; place < places; ++place) bytes += plan->bytes(tensor, 0, place);
            require(tensor.bytes == 0 || bytes == tensor.bytes, "the parts are the whole", tensor.name);
        }
    }
    for (const Layout layout : {Layout::replicate, Layout::by_tensor})
        require(checkpoint::lay_out(header.tensors, 3, layout).ok(), "what was read is laid out");
}

// What was read can be written, and reads as the same tensors.
void check_written(const SafetensorsHeader& header) {
    std::vector<checkpoint::TensorToWrite> tensors;
    for (const TensorInfo& tensor : header.tensors)
        tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
    const auto written = checkpoint::write_header(tensors, header.metadata);
    require(written.ok(), "what was read can be written", written.ok() ? "" : written.error().to_string());
    const std::string_view text = std::string_view(written->bytes).substr(checkpoint::length_bytes);
    const auto length = checkpoint::header_length(written->bytes, written->file_size, "again");
    require(length.ok() && *length == text.size(), "the written length is the header's");
    const auto again = checkpoint::parse_header(text, written->file_size, {}, "again");
    require(again.ok(), "a written header reads", again.ok() ? "" : again.error().to_string());
    require(again->metadata == header.metadata, "metadata comes back");
    require(again->tensors.size() == tensors.size(), "tensors come back");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const TensorInfo& one = again->tensors[i];
        const auto& wanted = tensors[written->order[i]];
        // Those without bytes share their place with others, which come in the order of the text.
        if (one.bytes == 0 || written->sizes[written->order[i]] == 0) continue;
        require(one.name == wanted.name && one.dtype == wanted.dtype && one.shape == wanted.shape,
                "tensors come back in their order", one.name);
    }
}

}  // namespace
}  // namespace sidestep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sidestep;
    if (size == 0) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    (void)checkpoint::header_length(text.substr(0, 8), text.size(), "f").ok();
    const Bytes file_size = checkpoint::length_bytes + text.size() + data[0];
    CheckpointOptions lenient;
    lenient.lenient = true;
    const auto strict = checkpoint::parse_header(text, file_size, {}, "f");
    const auto loose = checkpoint::parse_header(text, file_size, lenient, "f");
    for (const auto* header : {&strict, &loose}) {
        if (header->ok()) {
            fuzz::check_header(**header, file_size, header == &strict);
            fuzz::check_layouts(**header);
            continue;
        }
        fuzz::require(header->error().message.size() > 5 && header->error().message.size() < 1000,
                      "a refusal has words");
        fuzz::require(header->error().where.substr(0, 1) == "f", "a refusal names the file",
                      header->error().to_string());
    }
    if (!strict.ok()) return 0;
    fuzz::require(loose.ok() && loose->notes.empty(), "lenient takes all that is right");
    fuzz::check_written(*strict);
    return 0;
}
