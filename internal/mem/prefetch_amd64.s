//go:build amd64 && !(race && invariants)

#include "textflag.h"

// func prefetchLines(p unsafe.Pointer, lines int)
TEXT ·prefetchLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
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
