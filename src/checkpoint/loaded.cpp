#include "checkpoint/loaded.hpp"

#include <algorithm>

#include "checkpoint/report.hpp"

namespace sidestep {
namespace checkpoint {
namespace {

// Position among the places; their number where it is none of them.
std::size_t number_of(const std::vector<Place>& places, const Place& place) {
    return static_cast<std::size_t>(std::find(places.begin(), places.end(), place) - places.begin());
}

LoadedTensor tensor_at(const LayoutPlan& plan, const TensorInfo& info, std::size_t tensor, std::size_t place,
                       const Buffer& memory) {
    LoadedTensor loaded;
    loaded.name = info.name;
    loaded.dtype = info.dtype;
    loaded.shape = info.shape;
    if (const Cut* const cut = plan.cut(tensor)) {
        loaded.axis = cut->axis;
        loaded.first = cut->first(place);
        loaded.shape[static_cast<std::size_t>(cut->axis)] = cut->first(place + 1) - cut->first(place);
    }
    loaded.buffer = memory.slice(plan.slots[tensor].offset, plan.bytes(info, tensor, place));
    return loaded;
}

ReportFacts report_facts(const LoadedContent& content) {
    ReportFacts facts;
    facts.places = content.options.to;
    facts.layout = content.options.layout;
    facts.tensors = content.checkpoint.tensors().size();
    facts.file_bytes = content.file_bytes;
    facts.page_cache = content.options.page_cache;
    facts.max_staging = content.options.max_staging;
    return facts;
}

}  // namespace

void list_tensors(const LayoutPlan& plan, LoadedContent& content) {
    const std::vector<TensorInfo>& infos = content.checkpoint.tensors();
    const std::size_t places = content.memory->size();
    content.tensors.resize(places);
    content.numbers.resize(places);
    for (std::size_t place = 0; place < places; ++place) {
        const Buffer& memory = (*content.memory)[place].buffer();
        for (std::size_t i = 0; i < infos.size(); ++i) {
            if (!plan.has(place, i)) continue;
            content.tensors[place].push_back(tensor_at(plan, infos[i], i, place, memory));
            content.numbers[place].push_back(i);
        }
    }
}

}  // namespace checkpoint

const std::vector<Place>& Loaded::places() const {
    return content_->options.to;
}

const std::vector<LoadedTensor>& Loaded::tensors(const Place& place) const {
    static const std::vector<LoadedTensor> none;
    const std::size_t number = checkpoint::number_of(places(), place);
    return number < places().size() ? content_->tensors[number] : none;
}

const LoadedTensor* Loaded::find(std::string_view name, const Place& place) const {
    const std::size_t number = checkpoint::number_of(places(), place);
    const TensorInfo* const info = content_->checkpoint.find(name);
    if (number == places().size() || info == nullptr) return nullptr;
    const auto wanted = static_cast<std::size_t>(info - content_->checkpoint.tensors().data());
    const std::vector<std::size_t>& numbers = content_->numbers[number];
    const auto found = std::lower_bound(numbers.begin(), numbers.end(), wanted);
    if (found == numbers.end() || *found != wanted) return nullptr;
    return &content_->tensors[number][static_cast<std::size_t>(found - numbers.begin())];
}

const Allocation* Loaded::allocation(const Place& place) const {
    const std::size_t number = checkpoint::number_of(places(), place);
    return number < places().size() ? &(*content_->memory)[number] : nullptr;
}

const Receipt& Loaded::receipt() const {
    return content_->receipt;
}

Bytes Loaded::file_bytes() const {
    return content_->file_bytes;
}

std::string Loaded::limit() const {
    const Stage* const stage = checkpoint::limiting_stage(content_->receipt);
    return stage == nullptr ? std::string() : stage->name;
}

std::string Loaded::faster() const {
    return checkpoint::advice(checkpoint::report_facts(*content_), content_->receipt);
}

std::string Loaded::report() const {
    return checkpoint::report_of(checkpoint::report_facts(*content_), content_->receipt);
}

}  // namespace sidestep
