# What of llama.cpp is built for cook, and how; read by cmake at the end of `project(llama.cpp)`
# (engine_setup.py names it in CMAKE_PROJECT_llama.cpp_INCLUDE). Nothing of llama.cpp is edited:
# its own options stay, its targets are chosen and their properties set once all of them exist.
#
# Most of an ordinary build's time goes to code that runs once a start or once a request (options,
# chat templates, JSON, images), and to reading the same headers for every file. So that code is
# compiled at -O1, and files are compiled several at a time. What runs for every token keeps the
# release's flags, and ggml is not touched at all: its kernels, flags and results are those of any
# other build.

cmake_language(DEFER CALL cook_engine)

function(cook_engine)
  cook_select_tools()
  set(common "${CMAKE_CURRENT_SOURCE_DIR}/common")
  set(tools "${CMAKE_CURRENT_SOURCE_DIR}/tools")

  # Once a token: sampling, drafting, the server's loop. A file with options of its own is never
  # merged with others.
  cook_keep_optimized(llama-common ${common}/sampling.cpp ${common}/speculative.cpp)
  cook_keep_optimized(server-context ${tools}/server/server-context.cpp)

  # llama.cpp itself merges only src/models; no two of these files give one static function's
  # name to two of them, but for the one that is kept apart.
  file(GLOB core "${CMAKE_CURRENT_SOURCE_DIR}/src/*.cpp")
  set_source_files_properties(${core} TARGET_DIRECTORY llama
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION FALSE)
  cook_keep_apart(llama ${CMAKE_CURRENT_SOURCE_DIR}/src/llama-kv-cache-dsv4.cpp)
  # These define what another file defines too, or refuse the headers of their neighbours.
  cook_keep_apart(llama-common ${common}/json.cpp)
  cook_keep_apart(mtmd ${tools}/mtmd/mtmd-helper.cpp ${tools}/mtmd/mtmd-helper-gen.cpp)

  foreach(target IN ITEMS llama llama-common mtmd server-context llama-server-impl)
    cook_merge(${target})
  endforeach()
  # The server links it for images and sound, of which cook sends none.
  target_compile_options(mtmd PRIVATE -O0)
  foreach(target IN ITEMS llama-common server-context llama-server-impl llama-bench-impl
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
