#include "textflag.h"

// func call(function uintptr) int64
//
// The kernel's function follows the C calling convention: it keeps BX, and
// needs a stack that is aligned to 16 bytes. The frame is that stack; the
// result lies at its top.
TEXT ·call(SB), 0, $1024-16
	MOVQ	function+0(FP), AX
	MOVQ	SP, BX
	MOVQ	SP, SI
	ADDQ	$1000, SI
	ANDQ	$~15, SI
	MOVQ	SI, SP
	MOVL	$7, DI	// CLOCK_BOOTTIME
	CALL	AX
	MOVQ	SP, SI
	MOVQ	BX, SP
	TESTL	AX, AX
	JNE	failed
	MOVQ	(SI), AX	// seconds
	IMULQ	$1000000000, AX
	ADDQ	8(SI), AX	// nanoseconds
	MOVQ	AX, ret+8(FP)
	RET

failed:
	MOVQ	$0, ret+8(FP)
	RET
