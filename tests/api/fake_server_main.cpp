// The HTTP front end over the fake engine, for client tests in other languages: prints "PORT <n>" and serves until its
// standard input ends. Arguments: --key KEY, --origin ORIGIN, --step-us N, --tokens N,
// --comment-ms N (a comment line after so much silence of a stream), --connections N.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "api/http_server.h"
#include "base/status.h"
#include "support/fake_engine.h"

int main(int argc, char** argv) {
  tandem::HttpOptions options;
  tandem::FakeEngineOptions engine_options;
  options.version = "test";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--key") options.api_keys.push_back(value);
    if (flag == "--origin") options.cors_allow_origins.push_back(value);
    if (flag == "--step-us") engine_options.step = std::chrono::microseconds(std::atoi(value.c_str()));
    if (flag == "--comment-ms") options.stream_comment_after = std::chrono::milliseconds(std::atoi(value.c_str()));
    if (flag == "--connections") options.max_connections = static_cast<std::uint32_t>(std::atoi(value.c_str()));
    if (flag == "--tokens") engine_options.natural_tokens = static_cast<std::uint32_t>(std::atoi(value.c_str()));
  }
  tandem::FakeEngine engine(engine_options);
  auto server = tandem::HttpServer::create(options, engine, engine.registry());
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tandem::message(server.status())).c_str());
    return 1;
  }
  (*server)->start();
  std::printf("PORT %d\n", static_cast<int>((*server)->port()));
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  (*server)->stop();
  return 0;
}
