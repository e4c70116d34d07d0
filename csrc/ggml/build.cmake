# ggml from its sources, installed into ollama_engine/_lib.
set(BUILD_SHARED_LIBS ON)
set(GGML_LLAMAFILE ON)  # off by default outside llama.cpp; its kernels make F16 and Q8_0 prefill fast
set(GGML_OPENMP OFF)    # each Backend owns a thread pool: two engines and torch's OpenMP do not meet
set(GGML_CUDA ${OLLAMA_ENGINE_CUDA})
set(GGML_CUDA_GRAPHS ${OLLAMA_ENGINE_CUDA})
set(GGML_VULKAN ${OLLAMA_ENGINE_VULKAN})
set(GGML_METAL ${OLLAMA_ENGINE_METAL})
set(GGML_RPC ${OLLAMA_ENGINE_RPC})
set(GGML_RPC_RDMA OFF)   # between the client and the worker stands our relay, which speaks TCP
set(GGML_BACKEND_DL ${OLLAMA_ENGINE_PORTABLE})
set(GGML_CPU_ALL_VARIANTS ${OLLAMA_ENGINE_PORTABLE})
if(OLLAMA_ENGINE_PORTABLE)
  set(GGML_NATIVE OFF)
endif()
# What ggml's threads wait for each other by must be seen: without that, every tensor that two of them read and write
# looks like a race.
if(OLLAMA_ENGINE_SANITIZE MATCHES "thread")
  set(GGML_SANITIZE_THREAD ON)
  add_compile_options(-g1)
endif()
# ggml's errors name its files: by the same paths wherever it is built, so that the bytes of a wheel are the same.
file(RELATIVE_PATH oe_ggml_below "${CMAKE_BINARY_DIR}" "${ggml_source}") # as ccache passes them
set(oe_ggml_paths "-ffile-prefix-map=${ggml_source}=ggml" "-ffile-prefix-map=${oe_ggml_below}=ggml"
    "-ffile-prefix-map=${ggml_source}/src/ggml-rpc/..=ggml/src") # the last one that fits; ccache has taken `..` away
set(GIT_EXE OFF CACHE INTERNAL "else ggml would report our commit as its own")
add_subdirectory("${ggml_source}" "${CMAKE_BINARY_DIR}/ggml" EXCLUDE_FROM_ALL)

# AMX has buffers of its own, which nothing here asks ggml for, and whose code takes a tenth of ggml's time to compile.
# (Virtual machines that announce AMX and do not allow it exist, too.)
check_c_compiler_flag(-mno-amx-int8 OE_KNOWS_AMX)
if(OE_KNOWS_AMX AND NOT OLLAMA_ENGINE_PORTABLE)
  target_compile_options(ggml-cpu PRIVATE -mno-amx-int8)
endif()

# For CPUs with i8mm, GCC 12 makes USDOT of loops whose signed bytes were computed as unsigned ones: the last block of Q5_0,
# where their number is odd, came out wrong (python -m ollama_engine.selftest). These files' other loops are NEON and SVE.
if(oe_arm64 AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  foreach(file quants.c repack.cpp arch/arm/quants.c arch/arm/repack.cpp)
    set_property(SOURCE "${ggml_source}/src/ggml-cpu/${file}" DIRECTORY "${ggml_source}/src"
                 APPEND PROPERTY COMPILE_OPTIONS -fno-tree-vectorize)
  endforeach()
endif()

# Code that reads files and messages, or is not called at all: it compiles for seconds, and computes nothing.
foreach(file gguf.cpp ggml-backend-meta.cpp ggml-opt.cpp)
  set_property(SOURCE "${ggml_source}/src/${file}" TARGET_DIRECTORY ggml-base APPEND PROPERTY COMPILE_OPTIONS -O1)
endforeach()
if(TARGET ggml-rpc)
  target_compile_options(ggml-rpc PRIVATE -O1)
  # Its server takes connections that a worker's front hands to it.
  target_sources(ggml-rpc PRIVATE "${CMAKE_SOURCE_DIR}/csrc/rpc/handed_connections.c")
  foreach(call bind listen accept setsockopt)
    target_compile_definitions(ggml-rpc PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${call}=oe_rpc_${call}>")
  endforeach()
endif()

# Without version links (wheels store no symlinks) and under names of our own: the loader goes by these names, and
# another package's libggml in the same process must not stand in for ours.
set(oe_libraries ggml ggml-base ${GGML_AVAILABLE_BACKENDS})
if(GGML_CPU_ALL_VARIANTS)
  set(oe_empty "${CMAKE_BINARY_DIR}/empty.cpp")
  file(TOUCH "${oe_empty}")
  get_property(ggml_targets DIRECTORY "${ggml_source}/src" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS ggml_targets)
    get_target_property(kind ${target} TYPE)
    if(NOT kind STREQUAL "MODULE_LIBRARY")
      continue()
    endif()
    string(REPLACE "ggml-cpu-" "" variant ${target})
    list(APPEND oe_variants ${variant})
    get_target_property(oe_march ${target} COMPILE_OPTIONS)
    list(FILTER oe_march INCLUDE REGEX "^-march=")
    if(oe_march)
      check_c_compiler_flag(${oe_march} OE_COMPILES_${variant}) # GCC 12 knows no SME, which armv9.2 has
    endif()
    if(oe_march AND NOT OE_COMPILES_${variant})
      list(APPEND oe_not_compiled ${variant})
    endif()
    if((NOT OLLAMA_ENGINE_CPU_VARIANTS AND NOT variant IN_LIST oe_not_compiled) OR variant IN_LIST OLLAMA_ENGINE_CPU_VARIANTS)
      list(APPEND oe_libraries ${target})
    else() # the target ggml depends on it, so it is built all the same: of one empty file
      set_target_properties(${target} PROPERTIES SOURCES "${oe_empty}" COMPILE_OPTIONS "")
      list(REMOVE_ITEM oe_libraries ${target})
    endif()
  endforeach()
  if(oe_not_compiled)
    message(STATUS "${CMAKE_C_COMPILER} does not know the instruction sets of ggml's CPU variants ${oe_not_compiled}")
  endif()
  foreach(variant IN LISTS OLLAMA_ENGINE_CPU_VARIANTS)
    if(NOT variant IN_LIST oe_variants)
      message(FATAL_ERROR "OLLAMA_ENGINE_CPU_VARIANTS names '${variant}', which ggml does not have; it has ${oe_variants}")
    endif()
  endforeach()
elseif(OLLAMA_ENGINE_CPU_VARIANTS)
  message(FATAL_ERROR "OLLAMA_ENGINE_CPU_VARIANTS is for builds with OLLAMA_ENGINE_PORTABLE=ON")
endif()
list(REMOVE_DUPLICATES oe_libraries)
foreach(target IN LISTS oe_libraries)
  set_property(TARGET ${target} PROPERTY VERSION)
  set_property(TARGET ${target} PROPERTY SOVERSION)
  set_property(TARGET ${target} PROPERTY PUBLIC_HEADER)
  if(OLLAMA_ENGINE_PORTABLE)
    target_compile_options(${target} PRIVATE ${oe_ggml_paths})
  endif()
  get_target_property(kind ${target} TYPE)
  if(kind STREQUAL "SHARED_LIBRARY")
    set_target_properties(${target} PROPERTIES OUTPUT_NAME "${target}-oe")
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION ollama_engine/_lib RUNTIME DESTINATION ollama_engine/_lib)
endforeach()
add_custom_target(oe_ggml ALL DEPENDS ${oe_libraries})
