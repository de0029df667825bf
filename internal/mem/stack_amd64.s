//go:build amd64 && !(race && invariants)

#include "textflag.h"

// func Here() Depth
TEXT ·Here(SB), NOSPLIT, $0-8
	LEAQ ret+0(FP), AX
	MOVQ AX, ret+0(FP)
	RET

// func prefetchAt(at uintptr, lines int)
TEXT ·prefetchAt(SB), NOSPLIT, $0-16
	MOVQ at+0(FP), SI
	MOVQ lines+8(FP), CX

next:
	TESTQ CX, CX
	JZ    done
	PREFETCHT0 (SI)
	ADDQ  $64, SI
	DECQ  CX
	JMP   next

done:
	RET
