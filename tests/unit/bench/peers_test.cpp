// What other programs print, written by hand after their documentation and sources.
#include "bench/peers.hpp"

#include <gtest/gtest.h>

namespace sidestep::bench {
namespace {

constexpr const char* nvbandwidth = R"json(Warning: something that is not JSON
{
   "nvbandwidth" :
   {
      "CUDA Runtime Version" : 13000,
      "Driver Version" : "580.159.04",
      "git_version" : "v0.8",
      "testcases" :
      [
         { "bandwidth_description" : "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
           "bandwidth_matrix" : [ [ "55.53", "55.56" ] ],
           "name" : "host_to_device_memcpy_ce", "status" : "Passed", "sum" : 111.09 },
         { "bandwidth_description" : "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
           "bandwidth_matrix" : [ [ "55.41", "55.42" ] ],
           "name" : "device_to_host_memcpy_ce", "status" : "Passed", "sum" : 110.83 },
         { "bandwidth_description" : "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
           "bandwidth_matrix" : [ [ "N/A", "396.4" ], [ "395.9", "N/A" ] ],
           "name" : "device_to_device_memcpy_write_ce", "status" : "Passed", "sum" : 792.3 },
         { "bandwidth_description" : "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
           "bandwidth_matrix" : [ [ "N/A", "394.1" ], [ "393.3", "N/A" ] ],
           "name" : "device_to_device_memcpy_read_ce", "status" : "Passed", "sum" : 787.4 },
         { "bandwidth_description" : "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
           "bandwidth_matrix" : [ [ "N/A", "390" ], [ "391", "N/A" ], [ "N/A", "389" ], [ "388", "N/A" ],
                                  [ "N/A", "779" ], [ "778", "N/A" ] ],
           "name" : "device_to_device_bidirectional_memcpy_write_ce", "status" : "Passed", "sum" : 4 },
         { "bandwidth_description" : "memory latency SM CPU(row) <-> GPU(column) (ns)",
           "bandwidth_matrix" : [ [ "1170.2", "1168" ] ],
           "name" : "host_device_latency_sm", "status" : "Passed", "sum" : 2338 },
         { "bandwidth_description" : "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)",
           "bandwidth_matrix" : [ [ "N/A", "827" ], [ "828", "N/A" ] ],
           "name" : "device_to_device_latency_sm", "status" : "Passed", "sum" : 1655 },
         { "name" : "device_to_device_memcpy_read_sm", "status" : "Waived" },
         { "name" : "a_test_of_tomorrow", "status" : "Error" }
      ]
   }
})json";

const PeerFigure* find(const std::vector<PeerFigure>& figures, const std::string& key,
                       const std::string& from, const std::string& to, const std::string& tool) {
    for (const PeerFigure& figure : figures)
        if (figure.key == key && figure.from == from && figure.to == to && figure.tool == tool)
            return &figure;
    return nullptr;
}

double value(const std::vector<PeerFigure>& figures, const std::string& key, const std::string& from,
             const std::string& to, const std::string& tool = "nvbandwidth v0.8") {
    const PeerFigure* figure = find(figures, key, from, to, tool);
    return figure ? figure->value : 0;
}

TEST(NvBandwidth, MatricesBecomeFiguresWithTheirEnds) {
    const auto figures = parse_nvbandwidth(nvbandwidth);
    ASSERT_TRUE(figures.ok()) << figures.error().to_string();
    EXPECT_EQ(figures->size(), 14u);
    EXPECT_EQ(value(*figures, "host_link", "host", "gpu:1"), 55.56);
    EXPECT_EQ(value(*figures, "host_link", "gpu:0", "host"), 55.41);
    EXPECT_EQ(value(*figures, "peer_engine", "gpu:0", "gpu:1", "nvbandwidth v0.8, write"), 396.4);
    // The GPU of the row reads from the GPU of the column.
    EXPECT_EQ(value(*figures, "peer_engine", "gpu:1", "gpu:0", "nvbandwidth v0.8, read"), 394.1);
    EXPECT_EQ(value(*figures, "latency_load", "gpu:1", "host"), 1168);
    EXPECT_EQ(value(*figures, "latency_load", "gpu:1", "gpu:0"), 828);
    EXPECT_FALSE(find(*figures, "latency_load", "gpu:1", "gpu:0", "nvbandwidth v0.8")->more_is_better);
}

TEST(NvBandwidth, OfSeveralMatricesTheLastIsTheSum) {
    const auto figures = parse_nvbandwidth(nvbandwidth);
    ASSERT_TRUE(figures.ok());
    EXPECT_EQ(value(*figures, "peer_both_ways", "gpu:0", "gpu:1"), 779);
    EXPECT_EQ(value(*figures, "peer_both_ways", "gpu:1", "gpu:0"), 778);
}

TEST(NvBandwidth, WhatDidNotPassIsAnError) {
    std::string text = nvbandwidth;
    text.replace(text.find("Passed"), 6, "Error ");
    const auto figures = parse_nvbandwidth(text);
    ASSERT_FALSE(figures.ok());
    EXPECT_NE(figures.error().message.find("host_to_device_memcpy_ce"), std::string::npos);
    EXPECT_FALSE(parse_nvbandwidth(R"({"nvbandwidth": {"error": "no device"}})").ok());
    for (const char* other :
         {"", "no output", "{}", "[]", R"({"nvbandwidth": {}})", R"({"nvbandwidth": {"testcases": 1}})",
          R"({"nvbandwidth": {"testcases": [1]}})",
          R"({"nvbandwidth": {"testcases": [{"name": "host_device_latency_sm", "status": "Passed"}]}})"})
        EXPECT_FALSE(parse_nvbandwidth(other).ok()) << other;
}

constexpr const char* sendrecv = R"(# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Using devices
#  Rank  0 Group  0 Pid   4711 on       host device  0 [0000:1b:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float    none      -1    17.76   59.04   59.04       0    17.90   58.58   58.58     N/A
  1073741824     268435456     float    none      -1  2961.10  362.62  362.40       0  2960.20  362.73  362.73     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 210.5
)";

TEST(NcclTests, BusBandwidthOutOfPlace) {
    const auto figures = parse_nccl_tests(sendrecv, "sendrecv_perf", 4);
    ASSERT_TRUE(figures.ok()) << figures.error().to_string();
    ASSERT_EQ(figures->size(), 2u);
    EXPECT_EQ((*figures)[1].bytes, Bytes{1} << 30);
    EXPECT_EQ((*figures)[1].value, 362.40);
    EXPECT_EQ((*figures)[1].what, "sendrecv_perf, 4 GPUs, bus bandwidth");
}

TEST(NcclTests, WrongValuesAndOtherTextsAreErrors) {
    std::string wrong = sendrecv;
    wrong.replace(wrong.find("362.40       0"), 14, "362.40       7");
    EXPECT_FALSE(parse_nccl_tests(wrong, "sendrecv_perf", 4).ok());
    EXPECT_FALSE(parse_nccl_tests("", "sendrecv_perf", 4).ok());
    EXPECT_FALSE(parse_nccl_tests("# only a heading\n", "sendrecv_perf", 4).ok());
}

constexpr const char* ib_write_bw =
    R"(---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : rxe0
 Number of qps   : 1            Transport type : IB
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x2b9e5d RKey 0x00021c VAddr 0x007f3e5a5f9000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    5000             196.51             196.40              0.023413
---------------------------------------------------------------------------------------
)";

TEST(Perftest, TheAverageInGigabytes) {
    const auto figures = parse_perftest(ib_write_bw, "rxe0");
    ASSERT_TRUE(figures.ok()) << figures.error().to_string();
    ASSERT_EQ(figures->size(), 1u);
    EXPECT_EQ((*figures)[0].bytes, Bytes{1} << 20);
    EXPECT_DOUBLE_EQ((*figures)[0].value, 196.40 / 8);
    std::string other = ib_write_bw;
    while (other.find("[Gb/sec]") != std::string::npos) other.replace(other.find("[Gb/sec]"), 8, "[MB/sec]");
    EXPECT_FALSE(parse_perftest(other, "rxe0").ok()) << "MB are MiB there";
    EXPECT_FALSE(parse_perftest("Couldn't connect\n", "rxe0").ok());
}

constexpr const char* fio = R"(fio: a note before the object
{
  "fio version" : "fio-3.33",
  "timestamp" : 1763733792,
  "jobs" : [
    { "jobname" : "sidestep", "error" : 0,
      "read" : { "io_bytes" : 1073741824, "bw_bytes" : 2867200000, "bw" : 2800000 },
      "write" : { "io_bytes" : 0, "bw_bytes" : 0, "bw" : 0 } }
  ]
})";

TEST(Fio, BytesASecondOfItsJob) {
    const auto figures = parse_fio(fio, false);
    ASSERT_TRUE(figures.ok()) << figures.error().to_string();
    ASSERT_EQ(figures->size(), 1u);
    EXPECT_DOUBLE_EQ((*figures)[0].value, 2.8672);
    EXPECT_EQ((*figures)[0].tool, "fio-3.33");
    EXPECT_EQ((*figures)[0].what, "file -> host, O_DIRECT");
    EXPECT_FALSE(parse_fio(fio, true).ok());  // wrote nothing
    std::string failed = fio;
    failed.replace(failed.find("\"error\" : 0"), 11, "\"error\" : 5");
    EXPECT_FALSE(parse_fio(failed, false).ok());
    for (const char* other : {"", "{}", R"({"jobs": []})", R"({"jobs": [1]})", R"({"jobs": [{}]})"})
        EXPECT_FALSE(parse_fio(other, false).ok()) << other;
}

Report report() {
    Report report;
    CaseResult link;
    link.key = "host_link";
    for (const Bytes bytes : {1 << 20, 1 << 30}) {
        Figure figure;
        figure.what = "host -> gpu:1";
        figure.from = "host";
        figure.to = "gpu:1";
        figure.bytes = bytes;
        figure.unit = "GB/s";
        link.figures.push_back(figure);
    }
    report.cases = {link};
    return report;
}

TEST(Attach, BesideTheLargestFigureWithTheSameEnds) {
    Report out = report();
    attach(out, {{.tool = "nvbandwidth",
                  .key = "host_link",
                  .what = "host -> gpu:1",
                  .from = "host",
                  .to = "gpu:1",
                  .unit = "GB/s",
                  .value = 55}});
    EXPECT_TRUE(out.cases[0].figures[0].peers.empty());
    ASSERT_EQ(out.cases[0].figures[1].peers.size(), 1u);
    EXPECT_EQ(out.cases[0].figures[1].peers[0].samples.median(), 55);
    EXPECT_EQ(out.cases.size(), 1u);
}

TEST(Attach, WhatNothingHereMeasuredStandsAlone) {
    Report out = report();
    attach(out, {{.tool = "nvbandwidth",
                  .key = "host_link",
                  .what = "host -> gpu:2",
                  .from = "host",
                  .to = "gpu:2",
                  .unit = "GB/s",
                  .value = 55},
                 {.tool = "nccl-tests", .what = "sendrecv_perf", .unit = "GB/s", .value = 362}});
    ASSERT_EQ(out.cases.size(), 2u);
    EXPECT_EQ(out.cases[1].key, "other_programs");
    ASSERT_EQ(out.cases[1].figures.size(), 2u);
    EXPECT_EQ(out.cases[1].figures[1].what, "sendrecv_perf (nccl-tests)");
    EXPECT_EQ(out.cases[1].figures[1].measured.median(), 362);
}

}  // namespace
}  // namespace sidestep::bench
