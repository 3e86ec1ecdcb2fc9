// A check of texts against the rules of NCCL's own XML parser, which is narrower than XML.
//
// The rules are those of xmlGetNode, xmlGetToken, xmlGetValue and xmlLoadSub in NCCL's src/graph/xml.cc
// (2.30.7), and of ncclTopoAddCpu, ncclTopoAddPci, ncclTopoAddGpu, ncclTopoAddNet, ncclTopoAddNvLinks and
// ncclTopoAddC2c in src/graph/topo.cc for what has to be there.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sidestep::testing {

class NcclParser {
public:
    // The first thing NCCL would stop at; empty where there is none.
    static std::string complaint(std::string_view text) {
        NcclParser parser(text);
        parser.read();
        return parser.complaint_;
    }

private:
    using Attributes = std::map<std::string, std::string, std::less<>>;

    struct Open {
        std::string name;
        int children = 0;
    };

    explicit NcclParser(std::string_view text) : text_(text) {}

    void fail(const std::string& what) {
        if (complaint_.empty()) complaint_ = what + " near \"" + std::string(text_.substr(at_, 60)) + "\"";
        at_ = text_.size();
    }

    void read() {
        while (complaint_.empty()) {
            while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
            if (at_ == text_.size()) break;
            if (text_[at_] != '<') return fail("something else than <");
            if (text_.substr(at_, 5) == "<!-- ") {
                const auto end = text_.find("-->", at_);
                if (end == std::string_view::npos) return fail("comment without end");
                at_ = end + 3;
            } else if (text_.substr(at_, 2) == "</") {
                close();
            } else {
                open();
            }
        }
        if (!open_.empty()) fail("unterminated " + open_.back().name);
    }

    void close() {
        const auto end = text_.find('>', at_);
        const std::string name(text_.substr(at_ + 2, end - at_ - 2));
        if (open_.empty() || open_.back().name != name) return fail("wrong end of " + name);
        open_.pop_back();
        at_ = end + 1;
    }

    // Up to, and without, the first of `ends`.
    std::string token(std::string_view ends) {
        const auto end = text_.find_first_of(ends, at_);
        if (end == std::string_view::npos || end - at_ > 253)
            return fail("a text of more than 253 characters"), "";
        const std::string found(text_.substr(at_, end - at_));
        at_ = end;
        return found;
    }

    void open() {
        ++at_;
        const std::string name = token(" />\n");
        Attributes attributes;
        // One blank, then the next attribute.
        while (complaint_.empty() && at_ < text_.size() && text_[at_] == ' ') {
            ++at_;
            const std::string key = token("= />\n");
            if (complaint_.empty() && text_.substr(at_, 2) != "=\"") return fail("no value");
            at_ += 2;
            attributes[key] = token("\"");
            ++at_;
        }
        if (!complaint_.empty()) return;
        if (attributes.size() > 16) return fail("more than 16 attributes");
        const bool single = text_.substr(at_, 2) == "/>";
        if (!single && text_[at_] != '>') return fail("no end of tag");
        at_ += single ? 2 : 1;
        check(name, attributes);
        if (!open_.empty() && ++open_.back().children > 640) return fail("more than 640 elements in " + name);
        if (!single) open_.push_back({name});
    }

    void check(const std::string& name, const Attributes& attributes) {
        static const std::map<std::string, std::vector<const char*>> parents = {
            {"system", {""}},        {"cpu", {"system"}}, {"pci", {"cpu", "pci"}}, {"gpu", {"pci"}},
            {"nic", {"cpu", "pci"}}, {"net", {"nic"}},    {"nvlink", {"gpu"}},     {"xgmi", {"gpu"}},
            {"c2c", {"gpu"}},        {"pcilink", {"pci"}}};
        static const std::map<std::string, std::vector<const char*>> needed = {
            {"system", {"version"}},
            {"cpu", {"numaid"}},
            {"pci", {"busid", "class", "link_speed", "link_width"}},
            {"nvlink", {"target", "count", "tclass"}},
            {"xgmi", {"target", "count", "tclass"}},
            {"c2c", {"bw", "count"}},
            {"pcilink", {"target"}}};
        const std::string parent = open_.empty() ? "" : open_.back().name;
        bool placed = false;
        if (parents.count(name) == 0) return fail("unknown element " + name);
        for (const char* allowed : parents.at(name)) placed = placed || parent == allowed;
        if (!placed) return fail(name + " in " + parent);
        if (needed.count(name) == 0) return;
        for (const char* attribute : needed.at(name)) {
            if (attributes.count(attribute) == 0) return fail(name + " without " + attribute);
        }
        // Once arch is x86_64, the vendor is needed, and of an Intel processor family and model.
        if (name != "cpu" || attributes.count("arch") == 0 || attributes.at("arch") != "x86_64") return;
        for (const char* attribute : {"vendor", "familyid", "modelid"}) {
            if (attributes.count(attribute) == 0) return fail(name + " without " + attribute);
        }
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::vector<Open> open_;
    std::string complaint_;
};

}  // namespace sidestep::testing
