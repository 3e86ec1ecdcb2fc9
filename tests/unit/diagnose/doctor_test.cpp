// What holds for every check, and for the report.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include <sidestep/doctor.hpp>

#include "diagnose/check.hpp"
#include "diagnose/diagnose.hpp"
#include "tests/unit/diagnose/fake_machine.hpp"

namespace sidestep::diagnose {
namespace {

TEST(Checks, AreNamedOnceAndSayEverything) {
    std::set<std::string> ids;
    for (const Check& check : all_checks()) {
        const std::string id = check.id;
        EXPECT_TRUE(ids.insert(id).second) << id;
        EXPECT_EQ(id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos) << id;
        for (const char* words :
             {check.title, check.symptom, check.looks_at, check.cost, check.remedy, check.sources})
            EXPECT_GT(std::string(words).size(), 10U) << id;
        EXPECT_NE(check.look, nullptr) << id;
    }
    // The causes of the facts this grew from number 35.
    EXPECT_GE(ids.size(), 35U);
}

TEST(Checks, CoverEveryGroup) {
    std::set<CheckGroup> groups;
    for (const Check& check : all_checks()) groups.insert(check.group);
    EXPECT_EQ(groups.size(), 7U);
}

// Whatever is missing, a check answers: with evidence and a remedy where it is not content.
void expect_sound(const Diagnosis& diagnosis) {
    for (const Finding& finding : diagnosis.findings) {
        EXPECT_FALSE(finding.summary.empty()) << finding.id;
        if (finding.verdict == Verdict::pass) continue;
        EXPECT_FALSE(finding.remedy.empty()) << finding.id;
        EXPECT_TRUE(finding.applies) << finding.id;
        const bool needs_evidence = finding.verdict != Verdict::unknown;
        EXPECT_FALSE(needs_evidence && finding.seen.empty()) << finding.id;
        EXPECT_EQ(finding.page, "docs/doctor/" + finding.id + ".md");
    }
}

TEST(Doctor, AnswersOnAMachineThatHidesEverything) {
    Machine machine;
    const Diagnosis diagnosis = examine_all(machine.evidence());
    expect_sound(diagnosis);
    EXPECT_EQ(diagnosis.count(Verdict::fail), 0) << diagnosis.to_string();
    EXPECT_FALSE(diagnosis.notes.empty());
}

TEST(Doctor, AnswersOnAHealthyServer) {
    H200Machine machine;
    const Diagnosis diagnosis = examine_all(machine.evidence());
    expect_sound(diagnosis);
    EXPECT_EQ(diagnosis.count(Verdict::fail), 0) << diagnosis.to_string();
}

TEST(Doctor, AnswersOnThisMachine) {
    const auto diagnosis = run_doctor({"live", {}});
    ASSERT_TRUE(diagnosis.ok()) << diagnosis.error().to_string();
    expect_sound(*diagnosis);
}

TEST(Doctor, MakesTheChecksThatAreAskedFor) {
    const auto some = run_doctor({"live", {}, {"memlock", "acs-redirect"}});
    ASSERT_TRUE(some.ok()) << some.error().to_string();
    EXPECT_EQ(some->findings.size(), 2U);
    const auto none = run_doctor({"live", {}, {"memlok"}});
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::not_found);
    EXPECT_EQ(none.error().hint, "did you mean 'memlock'?");
    const auto list = run_doctor({"live", {}, {"anything-else-at-all"}});
    EXPECT_NE(list.error().hint.find("the checks are: acs-redirect, "), std::string::npos)
        << list.error().hint;
}

// Nobody's machine is to go down because a line was pasted.
TEST(Checks, PasteNoReboot) {
    for (const Check& check : all_checks()) {
        const std::string command = check.command;
        for (const char* word : {"reboot", "shutdown", "systemctl isolate", "init 6"})
            EXPECT_EQ(command.find(word), std::string::npos) << check.id;
    }
}

TEST(Doctor, KnowsWhichCommandsNeedRoot) {
    for (const char* command :
         {"setpci -s 02:00.0 ECAP_ACS+0x6.w=0000", "sudo sidestep doctor", "nvidia-smi -i 0 -mig 0",
          "for port in 02:00.0; do setpci -s $port ECAP_ACS+0x6.w=0000; done",
          "systemctl start nvidia-fabricmanager", "mount -o remount,size=50% /dev/shm"})
        EXPECT_TRUE(needs_root(command)) << command;
    for (const char* command :
         {"ulimit -l unlimited", "systemctl status nvidia-fabricmanager", "nvidia-smi topo -p2p r",
          "numactl --hardware", "sidestep doctor --probe", "findmnt -o TARGET", "lspci -d 15b3:"})
        EXPECT_FALSE(needs_root(command)) << command;
}

TEST(Doctor, ReportsForPeopleAndPrograms) {
    Diagnosis diagnosis;
    diagnosis.machine = "live";
    diagnosis.findings = {{"a-pass",
                           CheckGroup::gpu_gpu,
                           "title a",
                           Verdict::pass,
                           true,
                           "all is well",
                           {{"/proc/a", "1"}},
                           {},
                           "",
                           "",
                           "",
                           false,
                           "p"},
                          {"b-fail",
                           CheckGroup::host,
                           "title b",
                           Verdict::fail,
                           true,
                           "it is broken",
                           {{"/proc/b", "0"}},
                           27.5,
                           "Half the rate.",
                           "mend it",
                           "mend --now",
                           true,
                           "p"},
                          {"c-none",
                           CheckGroup::host,
                           "title c",
                           Verdict::pass,
                           false,
                           "there is none",
                           {},
                           {},
                           "",
                           "",
                           "",
                           false,
                           "p"}};
    diagnosis.notes = {"NVML: not there"};
    const std::string text = diagnosis.to_string();
    EXPECT_NE(text.find("3 checks: 1 pass, 0 warn, 1 fail, 0 cannot be seen, 1 not applicable"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("about 27.5 GB/s"), std::string::npos) << text;
    EXPECT_NE(text.find("mend --now   (as root)"), std::string::npos) << text;
    EXPECT_NE(text.find("/proc/b: 0"), std::string::npos) << text;
    EXPECT_EQ(text.find("/proc/a: 1"), std::string::npos) << "evidence of what passes is left out";
    EXPECT_NE(diagnosis.to_string(true).find("/proc/a: 1"), std::string::npos);
    EXPECT_NE(text.find("NVML: not there"), std::string::npos);

    const auto json = nlohmann::json::parse(diagnosis.to_json());
    EXPECT_EQ(json["fail"], 1);
    EXPECT_EQ(json["pass"], 1);
    EXPECT_EQ(json["not_applicable"], 1);
    EXPECT_EQ(json["health"], "failures");
    EXPECT_EQ(json["findings"][1]["cost_gb_per_s"], 27.5);
    EXPECT_EQ(json["findings"][1]["needs_root"], true);
    EXPECT_EQ(json["findings"][2]["applies"], false);
}

// docs/doctor is written by the command; a page that is out of step is written again by
// `sidestep doctor --pages docs/doctor`.
TEST(DoctorPages, AreThoseInTheDocuments) {
    const std::filesystem::path folder = std::string(SIDESTEP_SOURCE_DIR) + "/docs/doctor";
    std::set<std::string> names;
    for (const DoctorPage& page : doctor_pages()) {
        names.insert(page.id + ".md");
        std::stringstream text;
        text << std::ifstream(folder / (page.id + ".md")).rdbuf();
        EXPECT_EQ(text.str(), page.text) << page.id;
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        EXPECT_EQ(names.count(entry.path().filename().string()), 1U)
            << entry.path() << " belongs to no check";
}

}  // namespace
}  // namespace sidestep::diagnose
