// One walk over the elements of a topology file. What every element and attribute is to NCCL: its
// src/graph/xml.cc and topo.cc (2.30.7), and RCCL's.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "topology/nccl_xml/attributes.hpp"
#include "topology/nccl_xml/draft.hpp"
#include "topology/nccl_xml/xml_parser.hpp"

namespace sidestep::topology::nccl_xml {

enum class Tag { system, cpu, pci, pcilink, gpu, nvlink, c2c, nic, net, other };

// An element that is open.
struct Frame {
    Tag tag = Tag::other;
    std::size_t line = 0;
    std::string text;     // as messages quote it
    DeviceId device = 0;  // what it is, or is about
    DeviceId above = 0;   // of a <pci>, and a <nic> below a <cpu>: what it hangs below

    // Of a <pci>:
    std::string pci_class;
    bool has_class = false;
    int generation = 0;  // 0: the file does not say
    int lanes = 0;
    bool has_pci = false;
    bool has_gpu = false;
    bool has_nic = false;
    bool has_c2c = false;
    bool has_net = false;

    int cpu_links = 0;     // of a <gpu>: NVLinks to an IBM processor
    bool ignored = false;  // it, and all that is in it
};

class Reader : public XmlVisitor {
public:
    Result<void> open(const XmlElement& element) override;
    Result<void> close() override;

    // The draft, after the whole file went well.
    Draft finish();

private:
    Tag tag_of(std::string_view name) const;
    Result<void> open(const XmlElement& element, Frame& frame);
    void ignore(const XmlElement& element);

    Result<void> open_system(const XmlElement& element, Frame& frame);
    Result<void> open_cpu(const XmlElement& element, Frame& frame);
    Result<void> open_pci(const XmlElement& element, Frame& frame);
    Result<void> open_pcilink(const XmlElement& element, Frame& frame);
    Result<void> open_gpu(const XmlElement& element, Frame& frame);
    Result<void> open_nvlink(const XmlElement& element, Frame& frame);
    Result<void> open_c2c(const XmlElement& element, Frame& frame);
    Result<void> open_nic(const XmlElement& element, Frame& frame);
    Result<void> open_net(const XmlElement& element, Frame& frame);
    Result<void> close_pci(const Frame& frame);
    Result<void> close_gpu(const Frame& frame);

    // What a <pci> is, from what is in it and its class.
    Result<DeviceKind> kind_of(const Frame& frame);
    Result<void> check_unique(const Frame& frame);
    void describe(const Frame& frame);
    double link_rate(const Device& gpu) const;
    // Joins a device to what a <pci> hangs below.
    void join(const Frame& pci, DeviceId device);
    // A card for a <net> that is not its <pci>'s first.
    DeviceId add_card(const XmlElement& element, const Frame& nic);
    // The host bridge of something straight below a <cpu>.
    Result<DeviceId> bridge_for(const XmlElement& element, const Frame& frame);

    Result<int> number(const XmlElement& element, const Frame& frame, const char* attribute, long lowest,
                       long highest, std::optional<int> otherwise) const;
    template <typename Names>
    void keep(const XmlElement& element, DeviceId id, const Names& attributes) {
        for (const char* attribute : attributes) {
            if (const auto value = element.attribute(attribute)) set(id, attribute, *value);
        }
    }
    void set(DeviceId id, std::string_view attribute, std::string_view value);

    Device& device(DeviceId id) { return draft_.parts.devices[id]; }
    // The element that is open `up` levels above the current one.
    Frame& above(std::size_t up = 1) { return frames_[frames_.size() - up]; }
    // The open <cpu>: right below <system>.
    Frame& cpu() { return frames_[1]; }

    Draft draft_;
    std::vector<Frame> frames_;

    int ignored_depth_ = 0;  // levels in an element that is passed over
    std::size_t ignored_ = 0;
    std::string first_ignored_;
    std::size_t assumed_links_ = 0;
    std::string first_assumed_;
    std::size_t classless_ = 0;
    std::string first_classless_;

    std::map<std::string, int, std::less<>> hosts_;  // by host_hash
    std::vector<std::size_t> cpus_of_host_;
    std::size_t cpus_ = 0;
    std::set<std::pair<int, int>> numa_nodes_;              // by host
    std::map<std::pair<DeviceId, int>, DeviceId> bridges_;  // by cpu

    struct Claim {
        std::size_t line;
        bool bridge;
    };
    std::unordered_map<std::string, Claim> claims_;  // by host and bus id
};

}  // namespace sidestep::topology::nccl_xml
