// SPDX-License-Identifier: Apache-2.0
// Sends the HTTP server what a scraper never sends. After each case it must still serve its page.
#include "cluster/metrics/http_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/all_descriptors.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::HttpClient;
using ::tandem::testing::HttpGet;
using ::tandem::testing::HttpRequest;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

HttpServer::Options OptionsFor(std::function<std::string()> page) {
  return {.path = "/metrics", .content_type = "text/plain", .page = std::move(page)};
}

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServer::Options options) {
    TANDEM_ASSERT_OK_AND_ASSIGN(server_, HttpServer::Start(std::move(options)));
  }
  void SetUp() override {
    Start(OptionsFor([] { return "the page\n"; }));
  }
  void ExpectServesItsPage() {
    EXPECT_THAT(HttpRequest(server_->port(), kGet),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 9\r\n"),
                      HasSubstr("\r\n\r\nthe page\n")));
  }
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesItsPageWithAndWithoutAQuery) {
  ExpectServesItsPage();
  EXPECT_THAT(HttpGet(server_->port(), "/metrics?collect=all"), HasSubstr("the page"));
}

TEST_F(HttpServerTest, ServesItsPageToRequestsInTheFormForProxies) {
  const auto get = [this](const std::string& target) {
    return HttpRequest(server_->port(), absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  };
  for (const char* target : {"http://localhost/metrics", "HTTP://10.0.0.1:9100/metrics?collect=all",
                             "https://user@host/metrics", "http:///metrics"}) {
    EXPECT_THAT(get(target), StartsWith("HTTP/1.1 200 OK\r\n")) << target;
  }
  for (const char* target :
       {"http://localhost", "http://localhost/", "http://", "http://metrics", "http:/metrics",
        "ftp://localhost/metrics", "http://host?/metrics", "http://host/http://host/metrics"}) {
    EXPECT_THAT(get(target), StartsWith("HTTP/1.1 404 Not Found\r\n")) << target;
  }
}

TEST_F(HttpServerTest, HeadHasNoContent) {
  const std::string response = HttpRequest(server_->port(), "HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(response,
              AllOf(HasSubstr("200 OK"), HasSubstr("Content-Length: 9"), Not(HasSubstr("the page"))));
}

// A web page can make its own name mean 127.0.0.1, and then ask the browser for this page.
TEST_F(HttpServerTest, RequestsForOtherNamesAreRefused) {
  HttpServer::Options options = OptionsFor([] { return "the page\n"; });
  options.access.names = {"ps-0.tandem", "ps0"};
  Start(std::move(options));
  const auto get = [this](const std::string& hosts) {
    return HttpRequest(server_->port(), absl::StrCat("GET /metrics HTTP/1.1\r\n", hosts, "\r\n"));
  };
  char own[256] = {};
  ASSERT_EQ(::gethostname(own, sizeof(own) - 1), 0);
  for (const std::string& host :
       {std::string("localhost"), std::string("LOCALHOST:9464"), std::string("127.0.0.1"),
        std::string("10.1.2.3:80"), std::string("[::1]:9464"), std::string("ps0:9464"),
        std::string("PS-0.tandem"), std::string("localhost.:1"), std::string(own)}) {
    EXPECT_THAT(get(absl::StrCat("Host: ", host, "\r\n")), StartsWith("HTTP/1.1 200 OK\r\n")) << host;
  }
  EXPECT_THAT(get(""), StartsWith("HTTP/1.1 200 OK\r\n"));  // no browser leaves it out
  for (const char* host :
       {"evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "ps", "[::1",
        "1.2.3", "0x7f.1", ":9464", "local host"}) {
    EXPECT_THAT(get(absl::StrCat("Host: ", host, "\r\n")),
                AllOf(StartsWith("HTTP/1.1 421 "), HasSubstr("--metrics-names"), Not(HasSubstr("the page"))))
        << host;
  }
  EXPECT_THAT(get("Host: localhost\r\nhOST: evil.example\r\n"), StartsWith("HTTP/1.1 421 "));
}

TEST_F(HttpServerTest, APasswordIsAskedFor) {
  HttpServer::Options options = OptionsFor([] { return "the page\n"; });
  options.access.credentials = "scraper:correct horse";
  Start(std::move(options));
  const auto get = [this](const std::string& headers) {
    return HttpRequest(server_->port(),
                       absl::StrCat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n"));
  };
  const auto basic = [](const char* text) {
    return absl::StrCat("Authorization: Basic ", absl::Base64Escape(text), "\r\n");
  };
  EXPECT_THAT(get(basic("scraper:correct horse")),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("the page")));
  EXPECT_THAT(
      get(absl::StrCat("authorization:bAsIc  ", absl::Base64Escape("scraper:correct horse"), " \r\n")),
      StartsWith("HTTP/1.1 200 OK\r\n"));
  for (const std::string& headers :
       {std::string(), basic("scraper:wrong"), basic("scraper"), basic(""), basic("scraper:correct horse2"),
        std::string("Authorization: Basic\r\n"), std::string("Authorization: Basic %%%\r\n"),
        std::string("Authorization: Bearer scraper:correct horse\r\n"),
        basic("scraper:correct horse") + basic("scraper:correct horse")}) {
    EXPECT_THAT(get(headers), AllOf(StartsWith("HTTP/1.1 401 Unauthorized\r\n"),
                                    HasSubstr("WWW-Authenticate: Basic realm="), Not(HasSubstr("the page"))))
        << headers;
  }
}

TEST_F(HttpServerTest, OtherPathsAreRefusedInALine) {
  for (const char* path : {"/", "/favicon.ico", "/metricsx", "/metrics/", "/../metrics", "*", "//metrics"}) {
    EXPECT_THAT(HttpGet(server_->port(), path),
                AllOf(StartsWith("HTTP/1.1 404 Not Found\r\n"), HasSubstr("see /metrics\n")))
        << path;
  }
  ExpectServesItsPage();
}

TEST_F(HttpServerTest, OtherMethodsAreRefusedInALine) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "X"}) {
    EXPECT_THAT(HttpRequest(server_->port(), absl::StrCat(method, " /metrics HTTP/1.1\r\n\r\n")),
                AllOf(StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"), HasSubstr("Allow: GET, HEAD\r\n")))
        << method;
  }
  ExpectServesItsPage();
}

TEST_F(HttpServerTest, TheBodyOfARefusedRequestDoesNotCostTheResponse) {
  // An unread body would reset the connection and lose the response.
  const std::string body(100'000, 'x');
  EXPECT_THAT(
      HttpRequest(server_->port(),
                  absl::StrCat("POST /metrics HTTP/1.1\r\nContent-Length: ", body.size(), "\r\n\r\n", body)),
      StartsWith("HTTP/1.1 405"));
}

TEST_F(HttpServerTest, WhatIsNotHttpIsRefused) {
  for (const char* request :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics SPDY/3\r\n\r\n",
        " / HTTP/1.1\r\n\r\n", "\n\n", "GET /metrics HTTP/2.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
    EXPECT_THAT(HttpRequest(server_->port(), request), StartsWith("HTTP/1.1 400 Bad Request\r\n")) << request;
  }
  ExpectServesItsPage();
}

TEST_F(HttpServerTest, LongHeadsAreRefused) {
  for (const std::string& request :
       {absl::StrCat("GET /", std::string(20'000, 'a'), " HTTP/1.1\r\n\r\n"), std::string(20'000, 'a'),
        absl::StrCat("GET /metrics HTTP/1.1\r\nX: ", std::string(20'000, '\0'), "\r\n\r\n")}) {
    EXPECT_THAT(HttpRequest(server_->port(), request), StartsWith("HTTP/1.1 431 "));
  }
  ExpectServesItsPage();
}

TEST_F(HttpServerTest, RandomBytesAreRefusedOrDropped) {
  std::mt19937_64 random(7);
  const std::string letters = "GET /metrics HTTP/1.1\r\n\r\n\t%?#:";
  for (int i = 0; i < 300; ++i) {
    std::string request(random() % 600, '\0');
    const bool text = random() % 2 == 0;
    for (char& c : request) c = text ? letters[random() % letters.size()] : static_cast<char>(random());
    HttpClient client(server_->port());
    ASSERT_TRUE(client.connected());
    client.Send(request);
    client.EndOfRequest();
    EXPECT_THAT(client.Receive(), AnyOf(IsEmpty(), StartsWith("HTTP/1.1 "))) << i;
  }
  ExpectServesItsPage();
}

TEST_F(HttpServerTest, ARequestThatArrivesByteByByteIsServed) {
  HttpClient client(server_->port());
  for (const char* c = kGet; *c != '\0'; ++c) ASSERT_TRUE(client.Send(absl::string_view(c, 1)));
  EXPECT_THAT(client.Receive(), HasSubstr("the page"));
}

TEST_F(HttpServerTest, AClientThatDoesNotFinishItsRequestIsTold) {
  HttpServer::Options options = OptionsFor([] { return "the page\n"; });
  options.timeout = absl::Milliseconds(500);
  Start(std::move(options));
  EXPECT_THAT(HttpRequest(server_->port(), "GET /metrics HTTP/1.1\r\nHost: "), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(HttpRequest(server_->port(), ""), "");  // nothing was sent: closed without a word
  ExpectServesItsPage();
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsDropped) {
  constexpr size_t kPage = size_t{64} << 20;  // more than the buffers of a socket
  HttpServer::Options options = OptionsFor([] { return std::string(kPage, 'x'); });
  options.timeout = absl::Milliseconds(500);
  options.max_connections = 1;
  Start(std::move(options));
  HttpClient idle(server_->port()), next(server_->port());
  ASSERT_TRUE(idle.Send(kGet));
  ASSERT_TRUE(next.Send("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_THAT(next.Receive(), StartsWith("HTTP/1.1 404"));  // accepted after the first one was dropped
  EXPECT_LT(idle.Receive().size(), kPage);
}

TEST_F(HttpServerTest, IdleConnectionsDoNotKeepAScraperOut) {
  HttpServer::Options options = OptionsFor([] { return "the page\n"; });
  options.timeout = absl::Minutes(10);
  options.min_age = absl::Milliseconds(1);
  Start(std::move(options));
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(std::make_unique<HttpClient>(server_->port()));
    ASSERT_TRUE(idle.back()->connected()) << i;
    idle.back()->Send(i % 2 == 0 ? "" : "GET /met");
  }
  ExpectServesItsPage();
}

TEST_F(HttpServerTest, ManyClientsAtOnceAreAllServed) {
  HttpServer::Options options = OptionsFor([] { return "the page\n"; });
  options.min_age = options.timeout = absl::Seconds(30);  // clients that are slow to send are not closed
  Start(std::move(options));
  std::vector<std::thread> threads;
  std::array<std::string, 200> responses;
  for (std::string& response : responses) {
    threads.emplace_back([&response, this] { response = HttpRequest(server_->port(), kGet); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& response : responses) EXPECT_THAT(response, HasSubstr("the page"));
}

TEST_F(HttpServerTest, AClientThatCameWhileNoDescriptorWasLeftIsServedLater) {
  const ipc::Descriptor early(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    const testing::AllDescriptors taken;
    ASSERT_EQ(::connect(early.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::send(early.get(), kGet, sizeof(kGet) - 1, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(kGet) - 1));
  }
  pollfd one = {early.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&one, 1, 60'000), 1);
  char bytes[64] = {};
  EXPECT_GT(::recv(early.get(), bytes, sizeof(bytes) - 1, 0), 0);
  EXPECT_THAT(std::string(bytes), StartsWith("HTTP/1.1 200 OK"));
  ExpectServesItsPage();
}

TEST(HttpServer, TheFunctionThatMakesThePageHasTheStackOfAnyThread) {
  const auto page = [] {
    std::array<volatile char, 1 << 20> stack;  // the thread of a web server may have a tenth of it
    for (size_t i = 0; i < stack.size(); i += 1024) stack[i] = '1';
    return std::string(1, stack[0]);
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server, HttpServer::Start(OptionsFor(page)));
  EXPECT_THAT(HttpGet(server->port(), "/metrics"), HasSubstr("\r\n\r\n1"));
}

TEST_F(HttpServerTest, ATakenPortIsNamed) {
  HttpServer::Options options = OptionsFor([] { return ""; });
  options.access.port = server_->port();
  const absl::Status taken = HttpServer::Start(std::move(options)).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(taken.message(), AllOf(HasSubstr(absl::StrCat("127.0.0.1:", server_->port())),
                                     HasSubstr("Address already in use")));
}

}  // namespace
}  // namespace tandem::cluster
