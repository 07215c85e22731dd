//! Short jumps: Cranelift gives each jump 32 bits of distance. Code with jumps of 8 bits where they reach is smaller, and
//! processors predict jumps that lie close to each other better.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, Instruction, InstructionBlock, OpKind,
};

use crate::Error;

/// A function's code, and where its instructions were and are, in order.
pub(crate) struct Shortened {
    pub(crate) bytes: Vec<u8>,
    places: Vec<(u32, u32)>,
}

impl Shortened {
    /// Where something of an instruction is (a distance in it, its start) that was at an offset.
    pub(crate) fn place(&self, old: u32) -> u32 {
        let index = self.places.partition_point(|(start, _)| *start <= old).saturating_sub(1);
        let (start, now) = self.places.get(index).copied().unwrap_or_default();
        now + (old - start)
    }
}

/// Constants of operations that fit into 8 bits are written in 8.
fn shorten_constant(instruction: &mut Instruction) {
    let (short, kind) = match instruction.code() {
        Code::Add_rm64_imm32 => (Code::Add_rm64_imm8, OpKind::Immediate8to64),
        Code::Or_rm64_imm32 => (Code::Or_rm64_imm8, OpKind::Immediate8to64),
        Code::And_rm64_imm32 => (Code::And_rm64_imm8, OpKind::Immediate8to64),
        Code::Sub_rm64_imm32 => (Code::Sub_rm64_imm8, OpKind::Immediate8to64),
        Code::Xor_rm64_imm32 => (Code::Xor_rm64_imm8, OpKind::Immediate8to64),
        Code::Cmp_rm64_imm32 => (Code::Cmp_rm64_imm8, OpKind::Immediate8to64),
        Code::Add_rm32_imm32 => (Code::Add_rm32_imm8, OpKind::Immediate8to32),
        Code::Or_rm32_imm32 => (Code::Or_rm32_imm8, OpKind::Immediate8to32),
        Code::And_rm32_imm32 => (Code::And_rm32_imm8, OpKind::Immediate8to32),
        Code::Sub_rm32_imm32 => (Code::Sub_rm32_imm8, OpKind::Immediate8to32),
        Code::Xor_rm32_imm32 => (Code::Xor_rm32_imm8, OpKind::Immediate8to32),
        Code::Cmp_rm32_imm32 => (Code::Cmp_rm32_imm8, OpKind::Immediate8to32),
        _ => return,
    };
    let value = match kind {
        OpKind::Immediate8to64 => instruction.immediate32to64(),
        _ => i64::from(instruction.immediate32() as i32),
    };
    if i8::try_from(value).is_ok() {
        instruction.set_code(short);
        instruction.set_op1_kind(kind);
    }
}

/// Encodes a function's code anew. `linked` are the places of distances that are filled in when it is linked.
pub(crate) fn shorten(code: &[u8], linked: &[u32]) -> Result<Shortened, Error> {
    const ADDRESS: u64 = 0;
    let mut instructions = vec![];
    // Constants lie behind the code, and stay where they are.
    let mut data = code.len();
    let mut decoder = Decoder::with_ip(64, code, ADDRESS, DecoderOptions::NONE);
    while decoder.position() < data {
        let instruction = decoder.decode();
        let at = instruction.ip() as usize;
        if decoder.position() > data || instruction.is_invalid() {
            // Zeros before the first constant.
            if code[at..data].iter().all(|byte| *byte == 0) {
                break;
            }
            return Err(Error(format!("no instruction at {at:#x} of compiled code")));
        }
        let is_linked = linked.iter().any(|place| (at..decoder.position()).contains(&(*place as usize)));
        if instruction.is_ip_rel_memory_operand() && !is_linked {
            data = data.min(instruction.ip_rel_memory_address() as usize);
        }
        instructions.push(instruction);
    }
    instructions.iter_mut().for_each(shorten_constant);
    let block = InstructionBlock::new(&instructions, ADDRESS);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)
        .map_err(|error| Error(error.to_string()))?;
    let places = instructions.iter().map(|instruction| instruction.ip() as u32).zip(encoded.new_instruction_offsets);
    let mut bytes = encoded.code_buffer;
    if data < code.len() {
        bytes.resize(data, 0xcc);
        bytes.extend_from_slice(&code[data..]);
    }
    Ok(Shortened { bytes, places: places.collect() })
}
