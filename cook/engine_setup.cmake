# What of llama.cpp is built for cook, and how; read by cmake at the end of `project(llama.cpp)`
# (engine_setup.py names it in CMAKE_PROJECT_llama.cpp_INCLUDE). Nothing of llama.cpp is edited:
# its own options stay, its targets are chosen and their properties set once all of them exist.
#
# Most of an ordinary build's time goes to code that runs once a start or once a request (options,
# chat templates, JSON, images), and to reading the same headers for every file. So that code is
# compiled at -O1, and files are compiled several at a time. What runs for every token keeps the
# release's flags, and so does all of ggml that computes: its kernels and results are those of any
# other build.

cmake_language(DEFER CALL cook_engine)

function(cook_engine)
  cook_select_tools()
  set(common "${CMAKE_CURRENT_SOURCE_DIR}/common")
  set(tools "${CMAKE_CURRENT_SOURCE_DIR}/tools")

  # Once a token: sampling, drafting, the server's loop; of llama.cpp itself, filling a batch, its
  # masks and its outputs. Laying out a graph is calls into ggml, reading a file is once a load.
  # A file with options of its own is never merged with others.
  cook_keep_optimized(llama-common ${common}/sampling.cpp ${common}/speculative.cpp)
  cook_keep_optimized(server-context ${tools}/server/server-context.cpp)

  set(src "${CMAKE_CURRENT_SOURCE_DIR}/src")
  cook_once_a_token(llama ${src}/llama-batch.cpp ${src}/llama-context.cpp ${src}/llama-graph.cpp
    ${src}/llama-kv-cache.cpp ${src}/llama-kv-cache-iswa.cpp ${src}/llama-sampler.cpp)

  # llama.cpp itself merges only src/models; no two of these files give one static function's
  # name to two of them, but for the one that is kept apart.
  file(GLOB core "${src}/*.cpp")
  set_source_files_properties(${core} TARGET_DIRECTORY llama
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION FALSE)
  cook_keep_apart(llama ${src}/llama-kv-cache-dsv4.cpp)
  # These define what another file defines too, or refuse the headers of their neighbours.
  cook_keep_apart(llama-common ${common}/json.cpp)
  cook_keep_apart(mtmd ${tools}/mtmd/mtmd-helper.cpp ${tools}/mtmd/mtmd-helper-gen.cpp)

  foreach(target IN ITEMS llama llama-common mtmd server-context llama-server-impl)
    cook_merge(${target})
  endforeach()
  # The server links it for images and sound, of which cook sends none.
  target_compile_options(mtmd PRIVATE -O0)
  # GGUF headers, the list of backends, what splits models over devices: nothing that computes.
  set(ggml "${CMAKE_CURRENT_SOURCE_DIR}/ggml/src")
  set_source_files_properties(${ggml}/gguf.cpp ${ggml}/ggml-backend-meta.cpp
    TARGET_DIRECTORY ggml-base PROPERTIES COMPILE_OPTIONS -O1)
  set_source_files_properties(${ggml}/ggml-backend-reg.cpp
    TARGET_DIRECTORY ggml PROPERTIES COMPILE_OPTIONS -O1)
  foreach(target IN ITEMS llama llama-common server-context llama-server-impl llama-bench-impl
      llama-batched-bench-impl llama-quantize-impl llama-ui cpp-httplib vendor-hash)
    target_compile_options(${target} PRIVATE -O1)
  endforeach()
endfunction()

# Build and install COOK_ENGINE_TOOLS, and of tools/ only what they need. What is not built is
# not among the compile commands either, by which the time left is told.
function(cook_select_tools)
  cook_targets_below(${CMAKE_CURRENT_SOURCE_DIR}/tools)
  set_target_properties(${targets} PROPERTIES EXCLUDE_FROM_ALL TRUE EXPORT_COMPILE_COMMANDS FALSE)
  set(wanted mtmd server-context llama-ui)
  foreach(tool IN LISTS COOK_ENGINE_TOOLS)
    foreach(target IN ITEMS llama-${tool} llama-${tool}-impl)
      if(TARGET ${target})
        list(APPEND wanted ${target})
        install(TARGETS ${target} RUNTIME LIBRARY)
      endif()
    endforeach()
  endforeach()
  # For a draft on another machine: one file, four seconds of a core.
  if(TARGET ggml-rpc-server)
    list(APPEND wanted ggml-rpc-server)
    install(TARGETS ggml-rpc-server RUNTIME LIBRARY)
  endif()
  set_target_properties(${wanted} PROPERTIES EXCLUDE_FROM_ALL FALSE EXPORT_COMPILE_COMMANDS TRUE)
endfunction()

function(cook_targets_below directory)
  get_property(found DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(below DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(each IN LISTS below)
    cook_targets_below(${each})
    list(APPEND found ${targets})
  endforeach()
  set(targets ${found} PARENT_SCOPE)
endfunction()

function(cook_keep_optimized target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS -O3)
endfunction()

# The same for several files of `target` that can be read as one.
function(cook_once_a_token target)
  set(together "${CMAKE_CURRENT_BINARY_DIR}/cook_once_a_token.cpp")
  list(TRANSFORM ARGN REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE lines)
  string(CONCAT lines ${lines})
  file(WRITE "${together}" "${lines}")
  target_sources(${target} PRIVATE "${together}")
  cook_keep_optimized(${target} "${together}")
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES HEADER_FILE_ONLY TRUE)
endfunction()

function(cook_keep_apart target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target}
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION TRUE)
endfunction()

# Larger batches are less work in all, smaller ones keep more cores busy to the end.
function(cook_merge target)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR batch "48 / ${cores}")
  if(batch GREATER 12)  # a compiler takes about a gigabyte then
    set(batch 12)
  elseif(batch LESS 4)
    set(batch 4)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()
