# tandem_proto(TARGET FILE.proto): a library of the generated messages and gRPC stubs, included as the proto's path.
function(tandem_proto target proto)
  get_filename_component(dir ${proto} DIRECTORY)
  get_filename_component(stem ${proto} NAME_WE)
  set(out ${CMAKE_BINARY_DIR}/proto)
  file(MAKE_DIRECTORY ${out})
  set(generated ${out}/${dir}/${stem}.pb.cc ${out}/${dir}/${stem}.grpc.pb.cc)
  add_custom_command(
    OUTPUT ${generated} ${out}/${dir}/${stem}.pb.h ${out}/${dir}/${stem}.grpc.pb.h
    COMMAND protobuf::protoc -I ${CMAKE_SOURCE_DIR}/proto --cpp_out=${out} --grpc_out=${out}
            --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${proto}
    DEPENDS ${CMAKE_SOURCE_DIR}/proto/${proto}
    VERBATIM)
  add_library(${target} STATIC ${generated})
  target_include_directories(${target} SYSTEM PUBLIC ${out})
  target_link_libraries(${target} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endfunction()
