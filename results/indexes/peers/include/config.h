// What Masstree's configure finds out, for GCC and Linux on x86-64: no
// assertions, and huge pages, as without flags.
#pragma once

#define CACHE_LINE_SIZE 64
#define ENABLE_ASSERTIONS 0
#define HAVE_CXX_TEMPLATE_ALIAS 1
#define HAVE_INT64_T_IS_LONG 1
#define HAVE_LONG_LONG 1
#define HAVE_MADV_HUGEPAGE 1
#define HAVE_OFF_T_IS_LONG 1
#define HAVE_SIZE_T_IS_UNSIGNED_LONG 1
#define HAVE_STD_HASH 1
#define HAVE_STD_IS_RVALUE_REFERENCE 1
#define HAVE_STD_IS_TRIVIALLY_COPYABLE 1
#define HAVE_STD_IS_TRIVIALLY_DESTRUCTIBLE 1
#define HAVE_SUPERPAGE 1
#define HAVE_TYPE_TRAITS 1
#define HAVE_UNALIGNED_ACCESS 1
#define HAVE___BUILTIN_CLZ 1
#define HAVE___BUILTIN_CLZL 1
#define HAVE___BUILTIN_CLZLL 1
#define HAVE___BUILTIN_CTZ 1
#define HAVE___BUILTIN_CTZL 1
#define HAVE___BUILTIN_CTZLL 1
#define HAVE___SYNC_ADD_AND_FETCH 1
#define HAVE___SYNC_ADD_AND_FETCH_8 1
#define HAVE___SYNC_BOOL_COMPARE_AND_SWAP 1
#define HAVE___SYNC_BOOL_COMPARE_AND_SWAP_8 1
#define HAVE___SYNC_FETCH_AND_ADD 1
#define HAVE___SYNC_FETCH_AND_ADD_8 1
#define HAVE___SYNC_FETCH_AND_OR 1
#define HAVE___SYNC_FETCH_AND_OR_8 1
#define HAVE___SYNC_LOCK_RELEASE_SET 1
#define HAVE___SYNC_LOCK_TEST_AND_SET 1
#define HAVE___SYNC_LOCK_TEST_AND_SET_VAL 1
#define HAVE___SYNC_OR_AND_FETCH 1
#define HAVE___SYNC_OR_AND_FETCH_8 1
#define HAVE___SYNC_SYNCHRONIZE 1
#define HAVE___SYNC_VAL_COMPARE_AND_SWAP 1
#define HAVE___SYNC_VAL_COMPARE_AND_SWAP_8 1
#define MASSTREE_MAXKEYLEN 255
#define SIZEOF_INT 4
#define SIZEOF_LONG 8
#define SIZEOF_LONG_LONG 8
#define SIZEOF_SHORT 2
#define SIZEOF_VOID_P 8
#define WORDS_BIGENDIAN_SET 1

#ifndef NDEBUG
#define NDEBUG 1
#endif

void fail_always_assert(const char* file, int line, const char* what, const char* why = nullptr)
    __attribute__((noreturn));
void fail_masstree_invariant(const char* file, int line, const char* what, const char* why = nullptr)
    __attribute__((noreturn));
void fail_masstree_precondition(const char* file, int line, const char* what, const char* why = nullptr)
    __attribute__((noreturn));

#define always_assert(x, ...) ((x) ? (void)0 : fail_always_assert(__FILE__, __LINE__, #x, ##__VA_ARGS__))
#define mandatory_assert always_assert
#define masstree_invariant(x, ...) ((void)0)
#define masstree_precondition(x, ...) ((void)0)
#define invariant masstree_invariant
#define precondition masstree_precondition
