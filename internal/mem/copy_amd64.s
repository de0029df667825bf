//go:build amd64 && !(race && invariants) && !simulated

#include "textflag.h"

// func copyWords(dst, src unsafe.Pointer, n int)
TEXT ·copyWords(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

four:
	CMPQ CX, $4
	JLT  one
	MOVQ (SI), AX
	MOVQ AX, (DI)
	MOVQ 8(SI), BX
	MOVQ BX, 8(DI)
	MOVQ 16(SI), DX
	MOVQ DX, 16(DI)
	MOVQ 24(SI), R8
	MOVQ R8, 24(DI)
	ADDQ $32, SI
	ADDQ $32, DI
	SUBQ $4, CX
	JMP  four

one:
	TESTQ CX, CX
	JZ    done
	MOVQ  (SI), AX
	MOVQ  AX, (DI)
	ADDQ  $8, SI
	ADDQ  $8, DI
	DECQ  CX
	JMP   one

done:
	RET

// func storeWord(word *uint64, v uint64)
TEXT ·storeWord(SB), NOSPLIT, $0-16
	MOVQ word+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET

// func addWord(word *atomic.Uint64, by uint64)
TEXT ·addWord(SB), NOSPLIT, $0-16
	MOVQ word+0(FP), AX
	MOVQ by+8(FP), BX
	ADDQ BX, (AX)
	RET
